"""Compiles a kernel from its functions: each function once, machine code only for the kernel.

Numba produces machine code for every function that it compiles: it links all called functions into
it, optimizes the result, and does so again at every level up to the kernel. That was two thirds of
the time to compile. Here a function that only kernels call stays a piece of IR, a `Part`. A kernel,
a `Whole`, links its parts, and is optimized and turned into machine code once.

The pipeline is Numba's without the passes that kernels do not need (closures, array expressions,
parallel loops, annotations). The result type of a call or an operator is determined once for the
same types: Numba tries a dozen templates at each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numba import _dynfunc
from numba.core import typed_passes as typed
from numba.core import untyped_passes as untyped
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import AnalysisPass, PassManager, register_pass
from numba.core.targetconfig import ConfigStack
from numba.core.types import Function, unliteral
from numba.core.typing import Context

_KNOWN: dict[tuple[Any, ...], tuple[Any, ...]] = {}


class _Typing(Context):  # type: ignore[misc]
    """Numba's typing context, with shared state, which remembers the result types of calls."""

    def __init__(self, shared: Any) -> None:
        self.__dict__ = shared.__dict__

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        """Numba's entry: the signature of a call, or None."""
        if kws:
            return super().resolve_function_type(func, args, kws)
        inline = ConfigStack.top_or_none().forceinline  # called functions inherit it
        literally = (id(func), inline, *map(id, args))
        keys = [literally]
        if type(func) is Function and not any(each.prefer_literal for each in func.templates):
            plain = tuple(map(unliteral, args))
            keys.insert(0, (id(func), inline, *map(id, plain)))
        for key in keys:
            if key in _KNOWN:
                return _KNOWN[key][0]
        found = super().resolve_function_type(func, args, kws)
        if found is not None:
            plainly = len(keys) > 1 and tuple(found.args) == plain
            # The objects are kept, so that no other object gets their ids.
            kept = (found, func, args, plain) if plainly else (found, func, args)
            _KNOWN[keys[0] if plainly else literally] = kept
        return found


class _Library(JITCodeLibrary):  # type: ignore[misc]
    def _optimize_functions(self, module: Any) -> None:
        """Like Numba's method, but skips functions that are only declared: six of seven."""
        module.data_layout = self._codegen._data_layout
        for each in module.functions:
            if not each.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(each, builder)


class Part(_Library):
    """The IR of one function, without the functions that it calls."""

    _complete: Any = None

    def finalize(self) -> None:
        """Link and optimize nothing: the kernel does both."""
        self._finalized = True

    def own_module(self) -> Any:
        """The function, ready to be linked into many."""
        return super()._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        """The function and all that it calls, for a library of Numba's: a user's function."""
        if self._complete is None:
            self._complete = self.own_module().clone()
            _link(self._complete, _called_by(self, {self}))
        return self._complete


class Whole(_Library):
    """A kernel with all that it calls."""

    parts: tuple[Part, ...] = ()

    def finalize(self) -> None:
        """Link, optimize and make machine code."""
        called = list(_called_by(self, set()))
        self.parts = tuple(each for each in called if isinstance(each, Part))
        for each in self.parts:
            self._reload_init.update(each._reload_init)
        _link(self._final_module, self.parts)
        self._linking_libraries = [each for each in called if not isinstance(each, Part)]
        super().finalize()


def _called_by(library: Any, seen: set[Any]) -> Iterator[Any]:
    """The functions that a library and its parts call."""
    for each in library._linking_libraries:
        if each not in seen:
            seen.add(each)
            yield each
            if isinstance(each, Part):
                yield from _called_by(each, seen)


def _link(module: Any, libraries: Iterable[Any]) -> None:
    for each in libraries:
        part = each.own_module() if isinstance(each, Part) else each._get_module_for_linking()
        module.link_in(part, preserve=True)


@register_pass(mutates_CFG=False, analysis_only=True)
class _NoReferences(AnalysisPass):  # type: ignore[misc]
    """From here on nothing is counted. An allocation does not compile."""

    _name = "tidecast_no_references"

    def __init__(self) -> None:
        AnalysisPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Numba's entry."""
        state.targetctx = state.targetctx.subtarget(enable_nrt=False)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed.NativeLowering):  # type: ignore[misc]
    """Numba's pass from typed IR to LLVM's, into a `Part` or a `Whole`."""

    _name = "tidecast_lowering"

    def run_pass(self, state: Any) -> bool:
        """Numba's entry."""
        inside = state.flags.no_cpython_wrapper
        kind = Part if inside else Whole
        state.library = kind(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_compile = inside
        super().run_pass(state)
        if inside:
            self._announce(state)
        return True

    def _announce(self, state: Any) -> None:
        """Let kernels call a function that has no address."""
        made = state["cr"]
        name = made.fndesc.qualname.split(".")[-1]
        entry = _dynfunc.make_function(
            made.fndesc.lookup_module(), name, "a part of kernels", 0, made.env, (state.library,)
        )
        state.targetctx.insert_user_function(entry, made.fndesc, [state.library])
        state.reload_init.extend(state.library._reload_init)
        state["cr"] = made._replace(cfunc=entry)


_PASSES = (
    untyped.TranslateByteCode,
    untyped.FixupArgs,
    untyped.IRProcessing,
    untyped.RewriteSemanticConstants,
    untyped.DeadBranchPrune,
    untyped.GenericRewrites,
    untyped.RewriteDynamicRaises,
    untyped.ReconstructSSA,
    untyped.DeadBranchPrune,
    untyped.LiteralPropagationSubPipelinePass,
    typed.NopythonTypeInference,
    typed.PreLowerStripPhis,
    typed.NoPythonSupportedFeatureValidation,
    typed.IRLegalization,
    _NoReferences,
    _Lowering,
    typed.NoPythonBackend,
)


class Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with our pipeline."""

    def __init__(self, typingctx: Any, *others: Any) -> None:
        super().__init__(_Typing(typingctx), *others)

    def define_pipelines(self) -> list[Any]:
        """Numba's entry."""
        made = PassManager("tidecast")
        for each in _PASSES:
            made.add_pass(each)
        made.finalize()
        return [made]
