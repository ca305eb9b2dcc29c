"""PyTorch's kernels for operators that work element by element, and for those that move elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .backend_torch_base import (
    TAKE_OUT,
    Array,
    ComputeRule,
    add_kernel,
    cast,
    elementwise,
    stored_dtype,
    torch_dtype,
)
from .fused import unfused
from .tables import kernel_rule
from .tensor import Tensor


def _sign(value: Array) -> Array:
    # torch says 0 for NaN
    return (
        torch.where(torch.isnan(value), value, torch.sign(value))
        if value.is_floating_point()
        else torch.sign(value)
    )


def _relu(value: Array, out: Array | None = None) -> Array:
    return torch.clamp(value, min=0, out=out)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.true_divide,
    "negative": torch.neg, "square": torch.square, "sqrt": torch.sqrt, "exp": torch.exp, "expm1": torch.expm1,
    "log": torch.log, "log1p": torch.log1p, "tanh": torch.tanh, "sin": torch.sin, "cos": torch.cos,
    "maximum": torch.maximum, "minimum": torch.minimum, "less": torch.lt,
    "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "equal": torch.eq, "not_equal": torch.ne, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "logical_not": torch.logical_not, "sigmoid": torch.sigmoid, "relu": _relu,
}  # fmt: skip
TAKE_OUT.update((*FUNCTIONS.values(), torch.pow))
FUNCTIONS |= {"sign": _sign, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite}


def _multiply(node: Tensor) -> Callable[..., Array]:
    # A float times a truth value is a float to torch as well, without a copy of these as floats.
    plain = all(each.dtype in (node.dtype, np.bool_) for each in node.inputs)
    return torch.mul if plain and node.dtype.kind == "f" else elementwise(torch.mul)(node)


add_kernel("multiply", _multiply)
for _kind, _function in FUNCTIONS.items():
    add_kernel(_kind, elementwise(_function))


def _power(node: Tensor) -> Callable[..., Array]:
    if node.dtype.kind == "f":
        return elementwise(torch.pow)(node)
    raised = elementwise(torch.pow)(node)

    def power(left: Array, right: Array) -> Array:
        if bool((right < 0).any()):  # torch says 0 or 1
            raise ValueError("power: integers to negative integer powers are not allowed; use astype")
        return raised(left, right)

    return power


def _but_truth(function: Callable[..., Array]) -> ComputeRule:
    """Return the rule for a function that leaves truth values as they are, as NumPy has it; torch has none for them."""
    return lambda node: (lambda value: value) if node.dtype.kind == "b" else elementwise(function)(node)


def _divided(function: Callable[..., Array]) -> ComputeRule:
    """Return the rule for a division whose result for integers by 0 is 0, as NumPy has it; torch raises on a CPU."""

    def rule(node: Tensor) -> Callable[..., Array]:
        if node.dtype.kind == "f":
            return elementwise(function)(node)
        dtype = torch_dtype(node.dtype)

        def kernel(left: Array, right: Array) -> Array:
            by = cast(right, dtype)
            made: Array = function(cast(left, dtype), torch.where(by == 0, 1, by))
            return torch.where(by == 0, 0, made)

        return kernel

    return rule


add_kernel("floor_divide", _divided(torch.floor_divide))
add_kernel("remainder", _divided(torch.remainder))
add_kernel("power", _power)
add_kernel("absolute", _but_truth(torch.abs))
add_kernel("floor", _but_truth(torch.floor))
add_kernel("ceil", _but_truth(torch.ceil))


def _where(node: Tensor) -> Callable[..., Array]:
    dtype = torch_dtype(node.dtype)
    return lambda condition, yes, no: torch.where(condition, cast(yes, dtype), cast(no, dtype))


def _astype(node: Tensor) -> Callable[..., Array]:
    dtype = stored_dtype(node.dtype)
    return lambda value: value.to(dtype)


add_kernel("where", _where)
add_kernel("astype", _astype)


def _slices(node: Tensor) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return forward slices for the spans of a node, and the axes along which what they take is to be reversed."""
    slices, reversed_axes = [], []
    for axis, (start, step, length) in enumerate(node.op.attributes["spans"]):
        if step < 0 and length > 0:
            start, step = start + step * (length - 1), -step
            reversed_axes.append(axis)
        slices.append(slice(start, start + step * (length - 1) + 1, step) if length else slice(0, 0))
    return tuple(slices), tuple(reversed_axes)


def _slice(node: Tensor) -> Callable[..., Array]:
    slices, reversed_axes = _slices(node)
    if reversed_axes:
        return lambda value: torch.flip(value[slices], reversed_axes)
    return lambda value: value[slices]


def _place(node: Tensor) -> Callable[..., Array]:
    shape, dtype, fill = node.shape, torch_dtype(node.dtype), node.op.attributes["fill"]
    slices, reversed_axes = _slices(node)

    def place(value: Array) -> Array:
        made = torch.full(shape, fill, dtype=dtype, device=value.device)
        made[slices] = torch.flip(value, reversed_axes) if reversed_axes else value
        return made

    return place


def _concatenate(node: Tensor) -> Callable[..., Array]:
    axis, dtype = node.op.attributes["axis"], torch_dtype(node.dtype)
    return lambda *values: torch.cat([cast(each, dtype) for each in values], axis)


def _viewing(view: Callable[[Tensor, Array], Array]) -> ComputeRule:
    return lambda node: lambda value: view(node, value)


add_kernel("reshape", _viewing(lambda node, value: value.reshape(node.shape)))
add_kernel("transpose", _viewing(lambda node, value: value.permute(node.op.attributes["axes"])))
add_kernel("broadcast_to", _viewing(lambda node, value: value.expand(node.shape)))
add_kernel("slice", _slice)
add_kernel("place", _place)
add_kernel("concatenate", _concatenate)

for _kind in ("identity", "stop_gradient", "barrier", "call", "call_result"):
    add_kernel(_kind, lambda node: lambda value, *others: value)


def _fused(node: Tensor) -> Callable[..., Array]:
    """Run the steps over the whole array, each over an operand that dies there where it can be; what is dead is dropped."""
    steps, made, count = node.op.attributes["steps"], unfused(node), len(node.inputs)
    kernels = [kernel_rule(each.op.kind, "torch")(each) for each in made]
    last = {number: at for at, step in enumerate(steps) for number in step.operands if number >= count}
    plan = []
    for at, (kernel, step, each) in enumerate(zip(kernels, steps, made, strict=True)):
        dying = [number for number in dict.fromkeys(step.operands) if last.get(number) == at]
        # Only what a step has allocated itself may be written over: others can return one of the inputs.
        over = next(
            (
                number
                for number in dying
                if kernel in TAKE_OUT
                and kernels[number - count] in TAKE_OUT
                and made[number - count].dtype == each.dtype
            ),
            None,
        )
        plan.append((kernel, step.operands, over, dying))

    def run(*inputs: Array) -> Array:
        values: list[Any] = list(inputs)
        for kernel, operands, over, dying in plan:
            given = [values[number] for number in operands]
            values.append(kernel(*given) if over is None else kernel(*given, out=values[over]))
            for number in dying:
                values[number] = None
        result: Array = values[-1]
        return result

    return run


add_kernel("fused", _fused)
