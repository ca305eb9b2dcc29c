"""One operator that is many: elementwise steps that run over an array in blocks, so that what is between them stays in cache.

The steps are data in the operator's attributes.  On numpy a block runs through all steps before the next one is read; other
backends run the steps one after the other with their own kernels (``stepwise``).  The result has the same bits as the single
operators give, since each element comes from the elements at its place alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor, NotDifferentiable
from .tables import TRAITS, Kernel, Traits, define, kernel_rule, shape_rule
from .tensor import Tensor, TensorOp

#: Bytes of a block of one value.  A step costs 1 to 2 microseconds of Python for each block, so that smaller blocks lose more
#: than the second cache gains: of 64 KiB to the whole array, half a MiB and one were fastest for arrays of 1 to 16 MiB.
BLOCK_BYTES = 2**19
#: Indices into an array; None: the whole.
Index = tuple[int | slice, ...] | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operator of a fused one.

    Args:
        kind: its name.
        attributes: by name, sorted.
        operands: numbers of its inputs: those of the fused operator come first, then the steps.
        name: of the node that it was.
    """

    kind: str
    attributes: tuple[tuple[str, Any], ...] = ()
    operands: tuple[int, ...]
    name: str = field(compare=False)


def unfused(node: Tensor) -> tuple[Tensor, ...]:
    """Return the nodes that a fused node stands for, over its inputs, the last of which gives its value."""
    return tuple(_steps(node.inputs, node.op.attributes["steps"]))


def _steps(inputs: Sequence[Tensor], steps: Sequence[Step]) -> list[Tensor]:
    values = list(inputs)
    for step in steps:
        attributes = dict(step.attributes)
        given = tuple(values[number] for number in step.operands)
        shape, dtype = shape_rule(step.kind)(*given, **attributes)
        op = TensorOp(kind=step.kind, attributes=attributes, key=(step.kind, *step.attributes))
        size_bytes = prod(shape) * dtype.itemsize
        values.append(
            Tensor(name=step.name, op=op, inputs=given, shape=shape, dtype=dtype, size_bytes=size_bytes)
        )
    return values[len(inputs) :]


def _rule(*inputs: Tensor, steps: tuple[Step, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    made = _steps(inputs, steps)
    for each in made:
        if each.shape != made[-1].shape or not TRAITS[each.op.kind].elementwise:
            raise BadTensor(f"fused: {each!r} is no elementwise step of the shape {made[-1].shape}")
    return made[-1].shape, made[-1].dtype


def _gradient(node: Tensor, cotangent: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
    raise NotDifferentiable(f"{node.name!r} is fused: take the gradient first, and fuse afterwards")


def stepwise(node: Tensor, backend: str) -> Kernel:
    """Return the kernel that runs the steps one after the other, each over the whole array, on a backend."""
    kernels = [kernel_rule(each.op.kind, backend)(each) for each in unfused(node)]
    steps: tuple[Step, ...] = node.op.attributes["steps"]
    last = {number: at for at, step in enumerate(steps) for number in step.operands}
    over = [[number for number in set(step.operands) if last[number] == at] for at, step in enumerate(steps)]

    def kernel(*inputs: Any, out: Any = None) -> Any:
        values = list(inputs)
        for run, step, unused in zip(kernels[:-1], steps[:-1], over[:-1], strict=True):
            values.append(run(*[values[number] for number in step.operands]))
            for number in unused:
                values[number] = None
        return kernels[-1](*[values[number] for number in steps[-1].operands], out=out)

    return kernel


def blocks_of(shape: tuple[int, ...], most: int) -> tuple[tuple[int, ...], list[tuple[int | slice, ...]]]:
    """Return the shape of a block and the indices of the blocks of an array, each of at most ``most`` elements.

    One axis is cut, into equal parts but for the last; axes before it are indexed, those behind it are whole.  An array that is
    no larger than two blocks is one block, with the index ``()``.

    >>> blocks_of((3, 4), 5)
    ((1, 4), [(slice(0, 1, None),), (slice(1, 2, None),), (slice(2, 3, None),)])
    """
    if prod(shape) <= 2 * most:
        return shape, [()]
    axis = next(at for at in range(len(shape)) if prod(shape[at + 1 :]) <= most)
    length, behind = shape[axis], shape[axis + 1 :]
    count = -(-length // max(1, most // prod(behind)))
    rows = -(-length // count)
    cuts = [slice(at, min(at + rows, length)) for at in range(0, length, rows)]
    return (rows, *behind), [(*lead, cut) for lead in product(*map(range, shape[:axis])) for cut in cuts]


def _part(index: tuple[int | slice, ...], shape: tuple[int, ...], whole: tuple[int, ...]) -> Index:
    """Return the part of an input that broadcasts to a block of the result."""
    lead = len(whole) - len(shape)
    taken = tuple(
        each if shape[at - lead] == whole[at] else 0 if isinstance(each, int) else slice(None)
        for at, each in enumerate(index)
        if at >= lead
    )
    return None if all(each == slice(None) for each in taken) else taken


def _places(
    node: Tensor, steps: Sequence[Step], made: Sequence[Tensor]
) -> tuple[list[int], list[np.dtype[Any]]]:
    """Return where each step leaves its value, and the dtypes of the places between; a place is used again.

    The number after the last place is the result itself, where a value may lie before its time from the last step on that reads
    an input over which the result may be written: one of its shape and dtype.
    """
    inputs = len(node.inputs)
    overwritten = {
        number
        for number, each in enumerate(node.inputs)
        if each.shape == node.shape and each.dtype == node.dtype
    }
    opens = max((at for at, step in enumerate(steps) if overwritten.intersection(step.operands)), default=0)
    last = {number: at for at, step in enumerate(steps) for number in step.operands}
    result = -1
    places: list[int] = []
    dtypes: list[np.dtype[Any]] = []
    free = [result]
    for at, (step, each) in enumerate(zip(steps[:-1], made, strict=False)):
        free += [places[n - inputs] for n in dict.fromkeys(step.operands) if n >= inputs and last[n] == at]
        if result in free and each.dtype == node.dtype and at >= opens:
            place: int | None = result
        else:
            fits = (one for one in reversed(free) if one != result and dtypes[one] == each.dtype)
            place = next(fits, None)
        if place is None:
            place = len(dtypes)
            dtypes.append(each.dtype)
        else:
            free.remove(place)
        places.append(place)
    return [len(dtypes) if place == result else place for place in [*places, result]], dtypes


#: Memory for what is between the steps, of calls that are over: as large as the largest has needed, one for each thread that has
#: been in a kernel beside others.  All fused operators share it; the pop and append of a list are atomic.
_rooms: list[Any] = []


def _take_room(size_bytes: int) -> Any:
    try:
        memory = _rooms.pop()
    except IndexError:
        memory = np.empty(size_bytes, np.uint8)
    return memory if memory.nbytes >= size_bytes else np.empty(size_bytes, np.uint8)


def _stretches(elements: int, dtypes: Sequence[np.dtype[Any]]) -> list[slice]:
    """Return where each place lies in a room, aligned to 64 bytes."""
    found: list[slice] = []
    for dtype in dtypes:
        start = -(-found[-1].stop // 64) * 64 if found else 0
        found.append(slice(start, start + elements * dtype.itemsize))
    return found


def _numpy_rule(node: Tensor) -> Kernel:
    made = unfused(node)
    steps: tuple[Step, ...] = node.op.attributes["steps"]
    count, shape = len(node.inputs), node.shape
    most = max(1, BLOCK_BYTES // max(each.dtype.itemsize for each in made))
    rows, indices = blocks_of(shape, most)
    parts = [[_part(index, each.shape, shape) for each in node.inputs] for index in indices]
    places, dtypes = _places(node, steps, made)
    # Registers: the inputs, the places between, and at last the result.
    target = [count + place for place in places]
    calls = []
    for each, step, place in zip(made, steps, target, strict=True):
        first, *others = [n if n < count else target[n - count] for n in step.operands]
        calls.append((kernel_rule(each.op.kind, "numpy")(each), first, others, place))
    stretches = _stretches(prod(rows), dtypes)
    last: list[tuple[Any, list[Any]]] = [(None, [])]  # the room of the last call, and its places

    def run(registers: list[Any]) -> None:
        for function, first, others, place in calls:
            if not others:
                function(registers[first], out=registers[place])
            elif len(others) == 1:  # two operands, as most have: worth 0.1 microseconds
                function(registers[first], registers[others[0]], out=registers[place])
            else:
                given = [registers[number] for number in others]
                function(registers[first], *given, out=registers[place])

    def kernel(*inputs: Any, out: Any = None) -> Any:
        result = np.empty(shape, node.dtype) if out is None else out
        memory = _take_room(stretches[-1].stop if stretches else 0)
        held, room = last[0]
        if held is not memory:
            pairs = zip(stretches, dtypes, strict=True)
            room = [memory[stretch].view(dtype).reshape(rows) for stretch, dtype in pairs]
            last[0] = memory, room
        if not indices[0]:
            run([*inputs, *room, result])
        else:
            for index, part in zip(indices, parts, strict=True):
                block = result[index]
                between = room if block.shape == rows else [each[: len(block)] for each in room]
                given = [x if at is None else x[at] for x, at in zip(inputs, part, strict=True)]
                run([*given, *between, block])
        _rooms.append(memory)
        return result

    return kernel


define(
    "fused", shape=_rule, gradient=_gradient, kernels={"numpy": _numpy_rule},
    traits=Traits(
        elementwise=True, flops=lambda node: sum(TRAITS[each.op.kind].flops(each) for each in unfused(node))
    ),
)  # fmt: skip
