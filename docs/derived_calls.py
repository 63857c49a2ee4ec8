"""Shows methods that are made of others, such as `flush = awaits(PublisherFlows.flush_flow)`.

An extension of the reader of docstrings, which sees an attribute there.
"""

from __future__ import annotations

from typing import Any

import griffe

MAKERS = {"awaits": {"async"}, "in_thread": {"async"}, "waits": set[str]()}
"""Function that makes methods -> labels of these."""
FLOWS = {"Begun", "Flow"}


class DerivedCalls(griffe.Extension):
    """Replaces each such attribute by a copy of the method that it is made of."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The package is read."""
        for cls in _classes(pkg):
            for name, member in list(cls.members.items()):
                value = member.value if isinstance(member, griffe.Attribute) else None
                if isinstance(value, griffe.ExprCall) and str(value.function) in MAKERS:
                    source = value.arguments[0]
                    assert isinstance(source, griffe.Expr)
                    method = pkg[source.canonical_path.removeprefix(f"{pkg.name}.")]
                    cls.set_member(name, _copy(method, name, MAKERS[str(value.function)]))


def _classes(module: griffe.Object) -> list[griffe.Class]:
    found = []
    for member in module.members.values():
        if isinstance(member, griffe.Class):
            found.append(member)
        elif isinstance(member, griffe.Module):
            found += _classes(member)
    return found


def _copy(method: Any, name: str, labels: set[str]) -> griffe.Function:
    returns = method.returns
    if isinstance(returns, griffe.ExprSubscript) and str(returns.left) in FLOWS:
        returns = returns.slice
    made = griffe.Function(
        name, parameters=method.parameters, returns=returns, docstring=method.docstring
    )
    made.labels |= labels
    return made
