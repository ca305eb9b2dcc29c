"""Which node made the first NaN or infinity.

A node is at fault if its value has a NaN and its inputs have none, or an infinity and its inputs are finite.  An infinity that is
put in (a mask of -inf) is no fault; a NaN that is put in is the input's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import NotFinite
from .backends import Backend
from .fused import unfused
from .memory_plan import Step
from .stepping import Watch
from .tables import kernel_rule
from .tensor import Tensor, show


def first_not_finite(backend: Backend, given: Mapping[Tensor, Any]) -> Watch:
    """Return what watches a run and raises NotFinite at the first node at fault; ``given`` are inputs and constants.

    Raises:
        NotFinite: at once, for an input that has a NaN.
    """
    health = {node: _health(backend, node, value) for node, value in given.items()}
    for node, found in health.items():
        if found == NAN and node.op.kind == "input":
            raise NotFinite(
                f"the input {node.name!r}, {node.outline}, has {_count_nan(given[node])} NaN in it"
            )

    def watch(step: Step, values: Mapping[Tensor, Any]) -> None:
        node = step.node
        health[node] = _health(backend, node, values[node])
        if health[node] > max((health[source] for source in node.inputs), default=FINITE):
            raise NotFinite(_blame(backend, node, values))

    return watch


FINITE, INFINITE, NAN = range(3)


def _health(backend: Backend, node: Tensor, value: Any) -> int:
    if node.dtype.kind != "f" or backend.is_finite(value):
        return FINITE
    return NAN if _count_nan(value) else INFINITE


def _count_nan(value: Any) -> int:
    return int((value != value).sum())


def _blame(backend: Backend, node: Tensor, values: Mapping[Tensor, Any]) -> str:
    inside = ""
    if node.op.kind == "fused":
        inside = f" as a step of {node.name!r}"
        node, values = _guilty_step(backend, node, values)
    value = values[node]
    nans = _count_nan(value)
    made = f"{nans} NaN" if nans else f"{int((abs(value) == float('inf')).sum())} infinite"
    taken = "; ".join(_origin(source, values[source]) for source in dict.fromkeys(node.inputs))
    return (
        f"{node.name!r} ({node.op.kind}, {node.outline}){inside} made {made} of {node.size} elements "
        f"of inputs that have none: {taken}"
    )


def _guilty_step(
    backend: Backend, node: Tensor, values: Mapping[Tensor, Any]
) -> tuple[Tensor, dict[Tensor, Any]]:
    found = {source: values[source] for source in node.inputs}
    for each in unfused(node):
        taken = [found[source] for source in each.inputs]
        found[each] = kernel_rule(each.op.kind, backend.kernels)(each)(*taken)
        before = max(_health(backend, source, found[source]) for source in each.inputs)
        if _health(backend, each, found[each]) > before:
            return each, found
    raise AssertionError(f"{node.name!r} gives another value as single steps")


def _origin(source: Tensor, value: Any) -> str:
    while source.op.kind == "identity" and not source.op.attributes:  # what grad puts before each parameter
        source = source.inputs[0]
    where = "" if source.op.kind in ("input", "constant") else f" ({source.op.kind})"
    extent = (
        f" from {value.min():.6g} to {value.max():.6g}" if source.size and source.dtype.kind in "fiu" else ""
    )
    kind = f"{source.op.kind} " if not where else ""
    return f"{kind}{source.name!r}{where} {show(source.shape)}{extent}"
