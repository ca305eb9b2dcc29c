"""Operators that work element by element, with broadcasting: arithmetic, comparisons, exp and its kin.

Dtypes are those of NumPy's ufuncs, asked of them.  A gradient rule is written in the shape of the result;
``to_inputs`` sums it back to the shape, and casts it to the dtype, of each input.  Kernels do not look at the node's
shape, so that a fused operator may run them on blocks, and may write over an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import BadTensor
from .tables import GradientRule, Kernel, Traits, define
from .tensor import DType, Tensor, apply, astype, constant, dtype_of, show

ELEMENTWISE = Traits(elementwise=True)
FREE = Traits(elementwise=True, flops=lambda node: 0)

#: What a shape rule gives.
Form = tuple[tuple[int, ...], DType]


def broadcast(kind: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that the shapes have together; raises BadTensor with them."""
    distinct = {tuple(shape) for shape in shapes if len(shape)}
    if len(distinct) <= 1:  # nearly always, and NumPy takes 4 microseconds to say so
        return distinct.pop() if distinct else ()
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except ValueError:
        named = " and ".join(show(each) for each in shapes)
        raise BadTensor(f"{kind}: the shapes {named} do not broadcast together") from None


def check_float(kind: str, value: Tensor) -> None:
    """Raise BadTensor unless ``value`` is of floats."""
    if value.dtype.kind != "f":
        raise BadTensor(f"{kind}: floats are wanted, got {value.dtype}; use astype")


def to_input(cotangent: Tensor, like: Tensor) -> Tensor | None:
    """Return the cotangent in the shape and dtype of ``like``, summed where that was repeated; None: it is no float."""
    if like.dtype.kind != "f":
        return None
    summed = cotangent if cotangent.shape == like.shape else apply("sum_to", cotangent, shape=like.shape)
    return astype(summed, like.dtype)


def to_inputs(rule: GradientRule) -> GradientRule:
    """Return the gradient rule whose cotangents have the shapes and dtypes of the inputs."""

    def gradient(node: Tensor, g: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        parts = rule(node, g, *inputs)
        return tuple(
            None if part is None else to_input(part, like) for part, like in zip(parts, inputs, strict=True)
        )

    return gradient


def zero_of(dtype: DType) -> Tensor:
    """Return the constant 0 of a dtype."""
    return constant(np.zeros((), dtype))


@lru_cache(maxsize=4096)
def ufunc_dtype(kind: str, dtypes: tuple[DType, ...]) -> DType:
    """Return the dtype that NumPy's ufunc ``kind`` makes of arrays of ``dtypes``; raises BadTensor if it refuses them."""
    ufunc = getattr(np, kind)
    try:
        found: DType = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))[-1]
    except TypeError:
        names = " and ".join(str(each) for each in dtypes)
        raise BadTensor(f"{kind}: there is no {kind} of {names}; use astype") from None
    return found


def _unary(kind: str, ufunc: str) -> Callable[[Tensor], Form]:
    return lambda value: (value.shape, ufunc_dtype(ufunc, (value.dtype,)))


def _binary(kind: str) -> Callable[[Tensor, Tensor], Form]:
    return lambda left, right: (
        left.shape if left.shape == right.shape else broadcast(kind, left.shape, right.shape),
        ufunc_dtype(kind, (left.dtype, right.dtype)),
    )


def _ufunc(kind: str, rule: GradientRule | None, traits: Traits = ELEMENTWISE) -> None:
    """Define the operator that is one ufunc of NumPy."""
    function = getattr(np, kind)
    define(
        kind,
        shape=_unary(kind, kind) if function.nin == 1 else _binary(kind),
        gradient=None if rule is None else to_inputs(rule),
        kernels={"numpy": lambda node: function},
        traits=traits,
    )


_ufunc("add", lambda node, g, a, b: (g, g))
_ufunc("subtract", lambda node, g, a, b: (g, -g))
_ufunc("multiply", lambda node, g, a, b: (g * b, g * a))
_ufunc("divide", lambda node, g, a, b: (g / b, -(g * node) / b))
_ufunc("negative", lambda node, g, x: (-g,))
_ufunc("square", lambda node, g, x: (g * (2 * x),))
_ufunc("sqrt", lambda node, g, x: (0.5 * g / node,))
_ufunc("exp", lambda node, g, x: (g * node,))
_ufunc("expm1", lambda node, g, x: (g * (node + 1),))
_ufunc("log", lambda node, g, x: (g / x,))
_ufunc("log1p", lambda node, g, x: (g / (x + 1),))
_ufunc("tanh", lambda node, g, x: (g * (1 - apply("square", node)),))
_ufunc("sin", lambda node, g, x: (g * apply("cos", x),))
_ufunc("cos", lambda node, g, x: (-(g * apply("sin", x)),))
_ufunc("absolute", lambda node, g, x: (g * apply("sign", x),))


def _zero(node: Tensor, g: Tensor, *inputs: Tensor) -> tuple[None, ...]:
    return (None,) * len(inputs)


for _kind in ("sign", "floor", "ceil", "floor_divide"):  # flat wherever they have a derivative
    _ufunc(_kind, _zero)
_ufunc("remainder", lambda node, g, a, b: (g, -(g * (a // b))))
for _kind in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
    _ufunc(_kind, None, FREE)
for _kind in ("logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf", "isfinite"):
    _ufunc(_kind, None, FREE)


def _power_gradient(node: Tensor, g: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
    # Neither 0 * 0**-1 nor 0**b * log(0) may make a NaN of a derivative that is 0.
    never_zero = b.op.kind == "constant" and b.shape == () and bool(b.op.attributes["value"])
    exponent = b - 1 if never_zero else apply("where", apply("equal", b, 0), 1, b - 1)
    lower = a**exponent
    if b.dtype.kind != "f":
        return g * (b * lower), None
    no_zero = apply("where", apply("equal", a, 0), 1, a)
    return g * (b * lower), g * (node * apply("log", no_zero))


_ufunc("power", _power_gradient)


def _larger(compare: str) -> GradientRule:
    """Gradient rule of maximum and minimum: the cotangent goes where the result came from, from ties to the first."""

    def rule(node: Tensor, g: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first, zero = apply(compare, a, b), zero_of(g.dtype)
        return apply("where", first, g, zero), apply("where", first, zero, g)

    return rule


_ufunc("maximum", _larger("greater_equal"))
_ufunc("minimum", _larger("less_equal"))


def _where_rule(condition: Tensor, yes: Tensor, no: Tensor) -> Form:
    if condition.dtype.kind != "b":
        raise BadTensor(f"where: the condition must be of truth values, got {condition.dtype}; compare it")
    return broadcast("where", condition.shape, yes.shape, no.shape), np.result_type(yes.dtype, no.dtype)


def _where_gradient(node: Tensor, g: Tensor, condition: Tensor, yes: Tensor, no: Tensor) -> tuple[Any, ...]:
    zero = zero_of(g.dtype)
    return None, apply("where", condition, g, zero), apply("where", condition, zero, g)


#: The integers of as many bytes, by the character codes of dtypes.
_BITS: dict[str, Any] = {"e": np.int16, "f": np.int32, "d": np.int64, "i": np.int32, "l": np.int64}


def _where(condition: Any, yes: Any, no: Any, out: Any = None) -> Any:
    bits = _BITS.get(yes.dtype.char) if yes.dtype == no.dtype else None
    if bits is None:
        chosen = np.where(condition, yes, no)
        if out is None:
            return chosen
        np.copyto(out, chosen)
        return out
    # Choosing by a mask mispredicts a branch for each element where the mask is irregular (0.6 ms for 131,072 floats).
    # no + (yes - no) * condition on the bits as integers, which wrap around and so lose none, takes a ninth of that.
    other = no.view(bits)
    if out is None:
        out = np.empty(np.broadcast_shapes(condition.shape, yes.shape, no.shape), yes.dtype)
    target = out.view(bits)
    scratch = None if np.may_share_memory(out, no) else target
    scaled = np.multiply(np.subtract(yes.view(bits), other, out=scratch), condition, out=scratch)
    np.add(scaled, other, out=target)
    return out


define(
    "where", shape=_where_rule, kernels={"numpy": lambda node: _where}, traits=FREE,
    gradient=to_inputs(_where_gradient),
)  # fmt: skip


def _relu_rule(value: Tensor) -> Form:
    if value.dtype.kind not in "fiu":
        raise BadTensor(f"relu: numbers are wanted, got {value.dtype}; use astype")
    return value.shape, value.dtype


def _relu(node: Tensor) -> Kernel:
    if node.dtype.kind != "f":
        return lambda value, out=None: np.maximum(value, 0, out=out)
    # NumPy's maximum of an array and a number takes over twice as long as this.
    least, most = node.dtype.type(0), node.dtype.type(np.inf)
    return lambda value, out=None: np.clip(value, least, most, out=out)


define(
    "relu", shape=_relu_rule, kernels={"numpy": _relu}, traits=ELEMENTWISE,
    # The derivative at 0 is 0, so the result says as much as the input, which need not be kept.
    gradient=to_inputs(lambda node, g, x: (g * (node > 0),)),
)  # fmt: skip


def _sigmoid(node: Tensor) -> Kernel:
    dtype = node.dtype  # not that of the input: minus an unsigned integer is no negative number

    def kernel(value: Any, out: Any = None) -> Any:
        out = np.empty(np.shape(value), dtype) if out is None else out
        with np.errstate(over="ignore"):  # exp(-x) may be infinite, and then 1 / (1 + exp(-x)) is rightly 0
            np.exp(np.negative(value, out=out, dtype=dtype), out=out)
        np.add(out, 1, out=out)
        return np.reciprocal(out, out=out)

    return kernel


define(
    "sigmoid", shape=_unary("sigmoid", "exp"), kernels={"numpy": _sigmoid},
    traits=Traits(elementwise=True, flops=lambda node: 4 * node.size),
    gradient=to_inputs(lambda node, g, x: (g * (node * (1 - node)),)),
)  # fmt: skip


def _astype_kernel(node: Tensor) -> Kernel:
    def kernel(value: Any, out: Any = None) -> Any:
        if out is None:
            return value.astype(node.dtype)
        np.copyto(out, value, casting="unsafe")
        return out

    return kernel


define(
    "astype", shape=lambda value, *, dtype: (value.shape, dtype_of(dtype)), kernels={"numpy": _astype_kernel}, traits=FREE,
    gradient=lambda node, g, x: (astype(g, x.dtype) if x.dtype.kind == node.dtype.kind == "f" else None,),
)  # fmt: skip
