"""What users call: functions with NumPy's names and meaning on tensors, each one node or a few.

Arithmetic, comparisons and reductions stand here, what moves elements in ``rearranging``, sums of products in ``products``.
Importing this module fills the tables with the operators that come with the package.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from . import contracting, convolving, elementwise, indexing, normalising, reducing, shaping  # noqa: F401  (the tables)
from .arguments import Axis, as_tensor, axes_of, axis_of, in_float32
from .products import dot, einsum, matmul, tensordot
from .rearranging import (
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    getitem,
    moveaxis,
    ones_like,
    pad,
    ravel,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
    transpose,
    zeros_like,
)
from .tables import FUNCTIONS
from .tensor import Tensor, TensorLike, apply, astype, constant

__all__ = [
    "absolute", "add", "argmax", "argmin", "astype", "broadcast_to", "ceil", "clip", "concatenate", "cos", "cumsum", "divide",
    "dot", "einsum", "equal", "exp", "expand_dims", "expm1", "flip", "floor", "floor_divide", "getitem", "greater",
    "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log1p", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "moveaxis", "multiply",
    "negative", "not_equal", "ones_like", "pad", "power", "ravel", "remainder", "reshape", "sigmoid", "sign", "sin", "split",
    "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tanh",
    "tensordot", "transpose", "var", "where", "zeros_like",
]  # fmt: skip


def _one(kind: str, meaning: str) -> Callable[[TensorLike], Tensor]:
    """Return the function that applies an operator to each element of one tensor."""

    def function(value: TensorLike) -> Tensor:
        return apply(kind, value)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = meaning
    return function


def _two(kind: str, meaning: str) -> Callable[[TensorLike, TensorLike], Tensor]:
    """Return the function that applies an operator to the elements of two tensors, broadcast."""

    def function(left: TensorLike, right: TensorLike) -> Tensor:
        return apply(kind, left, right)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = meaning
    return function


absolute = _one("absolute", "Return each element without its sign; the derivative at 0 is 0.")
ceil = _one("ceil", "Return the smallest whole number from each element on; the derivative is 0.")
cos = _one("cos", "Return the cosine of each element.")
exp = _one("exp", "Return e to the power of each element.")
expm1 = _one("expm1", "Return e to the power of each element, less 1, also near 0.")
floor = _one("floor", "Return the largest whole number up to each element; the derivative is 0.")
isfinite = _one("isfinite", "Return where elements are neither infinite nor NaN.")
isinf = _one("isinf", "Return where elements are infinite.")
isnan = _one("isnan", "Return where elements are NaN.")
log = _one("log", "Return the natural logarithm of each element.")
log1p = _one("log1p", "Return the natural logarithm of 1 plus each element, also near 0.")
logical_not = _one("logical_not", "Return where elements are false.")
negative = _one("negative", "Return each element with the other sign.")
sigmoid = _one("sigmoid", "Return 1 / (1 + exp(-x)) for each element x.")
sign = _one("sign", "Return -1, 0 or 1 for each element; the derivative is 0.")
sin = _one("sin", "Return the sine of each element.")
sqrt = _one("sqrt", "Return the square root of each element.")
square = _one("square", "Return the square of each element.")
tanh = _one("tanh", "Return the hyperbolic tangent of each element.")

add = _two("add", "Return ``left + right``, broadcast.")
divide = _two("divide", "Return ``left / right``, broadcast.")
equal = _two(
    "equal", "Return where the elements are equal (``==`` on tensors asks whether they are one node)."
)
floor_divide = _two(
    "floor_divide", "Return the largest whole number up to ``left / right``, broadcast; the derivative is 0."
)
greater = _two("greater", "Return where ``left > right``.")
greater_equal = _two("greater_equal", "Return where ``left >= right``.")
less = _two("less", "Return where ``left < right``.")
less_equal = _two("less_equal", "Return where ``left <= right``.")
logical_and = _two("logical_and", "Return where both elements are true.")
logical_or = _two("logical_or", "Return where an element of the two is true.")
logical_xor = _two("logical_xor", "Return where exactly one element of the two is true.")
maximum = _two(
    "maximum", "Return the larger of two elements; where they are equal the derivative goes to ``left``."
)
minimum = _two(
    "minimum", "Return the smaller of two elements; where they are equal the derivative goes to ``left``."
)
multiply = _two("multiply", "Return ``left * right``, broadcast.")
not_equal = _two("not_equal", "Return where the elements differ.")
remainder = _two(
    "remainder", "Return what ``left // right`` leaves of ``left``, of the sign of ``right``, broadcast."
)
subtract = _two("subtract", "Return ``left - right``, broadcast.")


def _of_truth(name: str, kind: str) -> Callable[..., Tensor]:
    """Return NumPy's bitwise function for truth values, for which it is the logical one."""

    def function(*values: TensorLike) -> Tensor:
        tensors = [as_tensor(each) for each in values]
        for each in tensors:
            if each.dtype.kind != "b":
                raise BadTensor(f"{name}: truth values are wanted, got {each.dtype}; compare, or use astype")
        return apply(kind, *tensors)

    return function


def power(left: TensorLike, right: TensorLike) -> Tensor:
    """Return ``left`` to the power ``right``, broadcast; a power of 2 is a ``square``."""
    if type(right) in (int, float) and right == 2 and isinstance(left, Tensor) and left.dtype.kind == "f":
        return apply("square", left)
    if type(right) is int and right < 0 and isinstance(left, Tensor) and left.dtype.kind in "iu":
        raise BadTensor(
            f"power: integers to the power {right} are no integers; use astype, or {float(right)}"
        )
    return apply("power", left, right)


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """Return elements of ``x`` where the condition is true, else of ``y``."""
    chosen = astype(condition, np.dtype(np.bool_))
    if isinstance(x, (Tensor, np.ndarray, np.generic)) == isinstance(y, (Tensor, np.ndarray, np.generic)):
        x, y = as_tensor(x), as_tensor(y)
    elif isinstance(x, (Tensor, np.ndarray, np.generic)):
        y = _beside(x, y)
    else:
        x = _beside(y, x)
    return apply("where", chosen, x, y)


def _beside(typed: Any, value: Any) -> Tensor:
    """Return a Python number as it is beside ``typed``, whatever the dtype of the condition."""
    weak = isinstance(value, (bool, int, float))
    return constant(value, np.result_type(as_tensor(typed).dtype, value)) if weak else as_tensor(value)


def clip(value: TensorLike, a_min: TensorLike | None = None, a_max: TensorLike | None = None) -> Tensor:
    """Return each element, or the bound that it is beyond; at a bound the derivative is that of the element."""
    made = as_tensor(value)
    if a_min is not None:
        made = apply("maximum", made, a_min)
    return made if a_max is None else apply("minimum", made, a_max)


def sum(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the sum over ``axis``, by default over all."""
    return _folded("sum", value, axis, keepdims)


@in_float32
def mean(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the mean over ``axis``, by default over all."""
    tensor = as_tensor(value)
    count = prod(tensor.shape[each] for each in axes_of("mean", tensor.shape, axis))
    return _folded("sum", tensor, axis, keepdims) / count


@in_float32
def var(value: TensorLike, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> Tensor:
    """Return the mean square of the differences from the mean; ``ddof`` is taken from the number divided by."""
    tensor = as_tensor(value)
    count = prod(tensor.shape[each] for each in axes_of("var", tensor.shape, axis))
    differences = tensor - mean(tensor, axis, keepdims=True)
    return sum(square(differences), axis, keepdims) / builtins.max(count - ddof, 0)


@in_float32
def std(value: TensorLike, axis: Axis = None, *, ddof: int = 0, keepdims: bool = False) -> Tensor:
    """Return the square root of ``var``."""
    return sqrt(var(value, axis, ddof=ddof, keepdims=keepdims))


def max(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the largest element along ``axis``; several largest share the derivative."""
    return _folded("max", value, axis, keepdims)


def min(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element along ``axis``; several smallest share the derivative."""
    return _folded("min", value, axis, keepdims)


def argmax(value: TensorLike, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return where the largest element along ``axis`` is (the first); without an axis, in all elements in one row."""
    return _place_of("argmax", value, axis, keepdims)


def argmin(value: TensorLike, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Return where the smallest element along ``axis`` is (the first); without an axis, in all elements in one row."""
    return _place_of("argmin", value, axis, keepdims)


def cumsum(value: TensorLike, axis: int | None = None) -> Tensor:
    """Return the sums of each element and those before it along ``axis``; without an axis, of all in one row."""
    tensor = ravel(value) if axis is None else as_tensor(value)
    return apply("cumsum", tensor, axis=axis_of("cumsum", tensor.shape, axis or 0), reverse=False)


@in_float32
def logsumexp(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the logarithm of the sum of exp of the elements along ``axis``, for elements of any size."""
    tensor = as_tensor(value)
    axes = axes_of("logsumexp", tensor.shape, axis)
    rest = [at for at in range(tensor.ndim) if at not in axes]
    if len(axes) == 1:
        made = apply("logsumexp", tensor, axis=axes[0])
    else:
        rows = [tensor.shape[at] for at in rest]
        flat = reshape(transpose(tensor, [*rest, *axes]), (*rows, prod(tensor.shape[at] for at in axes)))
        made = apply("logsumexp", flat, axis=len(rest))
    return reshape(made, [1 if at in axes else n for at, n in enumerate(tensor.shape)]) if keepdims else made


def _folded(kind: str, value: TensorLike, axis: Axis, keepdims: bool) -> Tensor:
    tensor = as_tensor(value)
    return apply(kind, tensor, axis=axes_of(kind, tensor.shape, axis), keepdims=bool(keepdims))


def _place_of(kind: str, value: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    tensor = as_tensor(value)
    flat = ravel(tensor) if axis is None else tensor
    at = axis_of(kind, flat.shape, 0 if axis is None else axis)
    made = apply(kind, flat, axis=at)
    if not keepdims:
        return made
    return reshape(made, [1 if axis is None or each == at else n for each, n in enumerate(tensor.shape)])


FUNCTIONS.update({name: globals()[name] for name in __all__})
# What is known now is a number now: NumPy's own questions about an array.
FUNCTIONS.update({"shape": lambda x: x.shape, "ndim": lambda x: x.ndim, "size": lambda x: x.size})
FUNCTIONS.update({"amax": max, "amin": min, "invert": _of_truth("invert", "logical_not")})
FUNCTIONS.update(
    {f"bitwise_{word}": _of_truth(f"bitwise_{word}", f"logical_{word}") for word in ("and", "or", "xor")}
)
