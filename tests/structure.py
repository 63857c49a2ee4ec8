"""The imports and attributes of the engine's modules, read from text: for rules of `test_tidy`."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tests.project import select
from tests.syntax import nodes, statements

ENGINE = "engine/"


def module_name(path: str) -> str:
    """``engine/tidecast/a/b.py`` -> ``tidecast.a.b``; of a package's ``__init__``: the package."""
    parts = path.removeprefix(ENGINE).removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def engine_modules() -> dict[str, str]:
    """Module -> text."""
    return {module_name(path): text for path, text in select(".py", under=("engine/tidecast/",))}


def package_of(module: str, modules: Mapping[str, str]) -> str:
    """The package that a module lies in; of a package: itself."""
    is_package = any(other.startswith(f"{module}.") for other in modules)
    return module if is_package else module.rpartition(".")[0]


def imported(tree: ast.AST, modules: Mapping[str, str]) -> set[str]:
    """Modules of ours that a text imports, wherever the import stands."""
    found = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in modules else node.module)
    return found & modules.keys()


def import_graph(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> modules that it imports, those for types and those inside functions included."""
    return {name: imported(ast.parse(text), modules) - {name} for name, text in modules.items()}


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(group)

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def siblings(modules: Mapping[str, str]) -> Counter[str]:
    """Package -> how many modules lie in it beside each other, packages in it not counted."""
    counts: Counter[str] = Counter()
    for name in modules:
        if package_of(name, modules) != name:
            counts[name.rpartition(".")[0]] += 1
    return counts


def type_imports_of_parents(module: str, text: str, modules: Mapping[str, str]) -> list[str]:
    """Imports under ``TYPE_CHECKING`` of modules that lie in a package above the module's own."""
    if "TYPE_CHECKING" not in text:
        return []
    own = package_of(module, modules)
    found = []
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in imported(ast.Module(node.body, []), modules):
                package = package_of(other, modules)
                if package != "tidecast" and own.startswith(f"{package}."):
                    found.append(f"{node.lineno}: {other}")
    return found


def _own_attributes(tree: ast.Module) -> Iterator[str]:
    """Attributes that classes of a module declare or set on themselves."""
    for cls in nodes(tree):
        if isinstance(cls, ast.ClassDef):
            for line in cls.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    yield line.target.id
            for node in nodes(cls):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "self"
                ):
                    yield node.attr


def foreign_writes(text: str) -> Counter[str]:
    """Assignments ``x.y.attr = ...`` and ``x.attr = ...`` of attributes that no class here has."""
    tree = ast.parse(text)
    own = set(_own_attributes(tree))
    return Counter(
        ast.unparse(node)
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and node.attr not in own
    )


def guesses(text: str) -> set[str]:
    """Names that ``hasattr``, or ``getattr`` with a default, look for, and uses of ``__dict__``."""
    found: set[str] = set()
    if not any(name in text for name in ("hasattr", "getattr", "__dict__")):
        return found
    for node in nodes(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            found.add("__dict__")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asks = node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3)
            if asks and isinstance(node.args[1], ast.Constant):
                found.add(str(node.args[1].value))
    return found


def twin_classes(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """``folder: class`` -> the modules of the folder that define a class of this name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        folder, _, file = path.rpartition("/")
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            found[f"{folder}: {name}"].add(file.removesuffix(".py"))
    return {where: modules for where, modules in found.items() if len(modules) > 1}
