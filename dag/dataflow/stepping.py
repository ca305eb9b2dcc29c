"""A plan carried out one step at a time, each buffer allocated when it is first needed and dropped when it is last.

For backends that allocate their results themselves, and for runs that are watched: counting bytes, finding the node that made
a NaN.  ``Workspace`` does the same faster, and cannot be watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .memory_plan import MemoryPlan, Step
from .tables import Kernel
from .tensor import Tensor

Values = dict[Tensor, Any]
#: Called with each step and all values alive while it ran, its own among them.
Watch = Callable[[Step, Mapping[Tensor, Any]], None]


def run_by_step(
    plan: MemoryPlan,
    kernels: Mapping[Tensor, Kernel],
    given: Mapping[Tensor, Any],
    *,
    buffers: bool,
    watch: Watch | None = None,
) -> Values:
    """Return the values of the outputs, which may be those given.

    Args:
        kernels: of the node of each step.
        given: the values of inputs and constants.
        buffers: kernels write to NumPy arrays; False: they allocate what they return.
    """
    values: Values = dict(given)
    held: dict[int, Any] = {}
    tenants: dict[int, list[Tensor]] = {}
    for at, buffer in enumerate(plan.buffers):
        if buffer.donor is not None:
            held[at] = given[buffer.donor]
    for step in plan.steps:
        node = step.node
        number = step.buffer
        taken = [values[source] for source in node.inputs]
        if step.view or not buffers or number is None:
            values[node] = kernels[node](*taken)
        else:
            if number not in held:
                held[number] = np.empty(node.shape, node.dtype)
            out = held[number].reshape(node.shape)
            kernels[node](*taken, out=out)
            values[node] = out
        del taken
        if number is not None:
            tenants.setdefault(number, []).append(node)
        if watch is not None:
            watch(step, values)
        for free in step.frees:
            held.pop(free, None)
            for tenant in tenants.pop(free):
                del values[tenant]
    return {node: values[node] for node in plan.outputs}


def live_bytes(values: Iterable[Any], given: Iterable[Any]) -> int:
    """Return the bytes of the NumPy arrays that own the memory of ``values``, those of ``given`` left out."""
    owners = {id(owner): owner.nbytes for owner in map(owner_of, values)}
    for owner in map(owner_of, given):
        owners.pop(id(owner), None)
    return sum(owners.values())


def owner_of(array: Any) -> Any:
    """Return the array whose memory an array shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
