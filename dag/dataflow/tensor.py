"""Tensors as nodes of a graph: their shape and dtype are known when they are made, their values when the graph runs.

Operators are overloaded with NumPy's meaning and broadcasting; ``np.exp(tensor)`` makes a node too.  A shape that does not
fit is found here, not when the graph runs.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from ..graph import Node, Op
from .tables import FUNCTIONS, shape_rule, unknown

DType = np.dtype[Any]
#: What may stand where a tensor is wanted: an array or a number becomes a constant.
TensorLike = Any

_numbers = itertools.count()
_scope: ContextVar[str] = ContextVar("scope", default="")


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorOp(Op):
    """A row of the tables with its attributes filled in: ``sum`` over ``axis=0``."""

    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tensor(Node):
    """A node whose value is an array of ``shape`` and ``dtype``.

    ``serial`` grows in the order in which nodes are made; a copy keeps that of its original.
    """

    op: TensorOp
    inputs: tuple[Tensor, ...] = ()
    shape: tuple[int, ...]
    dtype: DType
    serial: int = 0

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def outline(self) -> str:
        """Its dtype and shape, as drawings show them."""
        return f"{self.dtype} {show(self.shape)}"

    @property
    def T(self) -> Tensor:
        """All dimensions in reverse order."""
        return apply("transpose", self, axes=tuple(reversed(range(self.ndim))))

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.op.kind}, {show(self.shape)}, {self.dtype})"

    def __bool__(self) -> bool:
        raise TypeError(f"{self.name!r} has no value yet; use where() in place of if, or run the graph first")

    def __array__(self, *given: Any, **settings: Any) -> Any:
        raise TypeError(
            f"{self.name!r} has no value yet; run the graph first: evaluate(tensor, {{input: array}})"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name!r} has no dimensions, so no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: TensorLike) -> Tensor:
        return apply("add", self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return apply("add", other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return apply("subtract", self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return apply("subtract", other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return apply("multiply", self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return apply("multiply", other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return apply("divide", self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return apply("divide", other, self)

    def __floordiv__(self, other: TensorLike) -> Tensor:
        return apply("floor_divide", self, other)

    def __rfloordiv__(self, other: TensorLike) -> Tensor:
        return apply("floor_divide", other, self)

    def __mod__(self, other: TensorLike) -> Tensor:
        return apply("remainder", self, other)

    def __rmod__(self, other: TensorLike) -> Tensor:
        return apply("remainder", other, self)

    def __pow__(self, other: TensorLike) -> Tensor:
        return _function("power", self, other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return _function("power", other, self)

    def __matmul__(self, other: TensorLike) -> Tensor:
        return _function("matmul", self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return _function("matmul", other, self)

    def __neg__(self) -> Tensor:
        return apply("negative", self)

    def __abs__(self) -> Tensor:
        return apply("absolute", self)

    def __invert__(self) -> Tensor:
        return _function("invert", self)

    def __and__(self, other: TensorLike) -> Tensor:
        return _function("bitwise_and", self, other)

    def __rand__(self, other: TensorLike) -> Tensor:
        return _function("bitwise_and", other, self)

    def __or__(self, other: TensorLike) -> Tensor:
        return _function("bitwise_or", self, other)

    def __ror__(self, other: TensorLike) -> Tensor:
        return _function("bitwise_or", other, self)

    def __xor__(self, other: TensorLike) -> Tensor:
        return _function("bitwise_xor", self, other)

    def __lt__(self, other: TensorLike) -> Tensor:
        return apply("less", self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return apply("less_equal", self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return apply("greater", self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return apply("greater_equal", self, other)

    # ``==`` stays identity: nodes are keys of dicts.  ``equal(a, b)`` makes the node.

    def __getitem__(self, index: Any) -> Tensor:
        return _function("getitem", self, index)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the same elements in another shape; one length may be -1."""
        lengths = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return _function("reshape", self, lengths)

    def transpose(self, *axes: Any) -> Tensor:
        """Return the dimensions in another order, by default reversed."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return _function("transpose", self, order)

    def astype(self, dtype: Any) -> Tensor:
        """Return the elements as another dtype."""
        return astype(self, dtype)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the sum over ``axis``, by default over all."""
        return _function("sum", self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the mean over ``axis``, by default over all."""
        return _function("mean", self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the largest element along ``axis``, by default of all."""
        return _function("max", self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the smallest element along ``axis``, by default of all."""
        return _function("min", self, axis, keepdims)

    def argmax(self, axis: int | None = None) -> Tensor:
        """Return where the largest element along ``axis`` is; without an axis, in all elements in one row."""
        return _function("argmax", self, axis)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        if method != "__call__" or settings:
            how = "" if method == "__call__" else f".{method}"
            given = "".join(f", {each}=" for each in settings)
            raise BadTensor(
                f"np.{ufunc.__name__}{how}(tensor{given}): no node stands for that; call it plainly"
            )
        ours = FUNCTIONS.get(ufunc.__name__)
        return apply(ufunc.__name__, *inputs) if ours is None else ours(*inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, given: Any, settings: Any) -> Any:
        ours = FUNCTIONS.get(function.__name__)
        if ours is None:
            raise unknown(function.__name__, FUNCTIONS)
        return ours(*given, **settings)


def input(name: str, shape: int | Sequence[int], dtype: Any = np.float32) -> Tensor:
    """Return a tensor whose value is given when the graph runs; a shape of one number has one dimension, as in NumPy.

    Raises:
        BadTensor: a length is negative or no integer, or the dtype is none of numbers or truth values.
    """
    given = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(isinstance(length, (int, np.integer)) and length >= 0 for length in given):
        raise BadTensor(f"input {name!r}: a shape has lengths from 0 on, got {brief(given)}")
    return _tensor(TensorOp(kind="input"), (), tuple(map(int, given)), dtype_of(dtype), name)


def constant(value: Any, dtype: Any = None) -> Tensor:
    """Return a tensor whose value is ``value``, which must not be changed afterwards.

    Raises:
        BadTensor: ``value`` is no array of numbers or truth values, or does not fit in ``dtype``.
    """
    array = array_of(value, None if dtype is None else dtype_of(dtype))
    if array.dtype.kind not in "fiub":
        raise BadTensor(f"a tensor holds numbers or truth values, got {brief(value)} of dtype {array.dtype}")
    array = array.astype(native(array.dtype), copy=False)
    return _tensor(
        TensorOp(kind="constant", key=_key_of(array), attributes={"value": array}),
        (),
        array.shape,
        array.dtype,
    )


def array_of(value: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """Return what NumPy makes of a value; raises BadTensor where that is no array of one shape, or not of ``dtype``."""
    try:
        return np.asarray(value, dtype=dtype)
    except OverflowError:
        raise BadTensor(
            f"{brief(value)} does not fit in {dtype or 'a tensor of integers'}; use astype"
        ) from None
    except TypeError:  # what asking a tensor for its value raises
        raise BadTensor(
            f"this is no array of numbers, got {brief(value)}; tensors are joined by stack"
        ) from None
    except ValueError as error:
        raise BadTensor(f"this is no array of numbers, got {brief(value)}: {error}") from None


def apply(kind: str, *inputs: TensorLike, **attributes: Any) -> Tensor:
    """Return the node that applies the operator ``kind``; arrays and numbers among ``inputs`` become constants.

    A Python number takes the dtype of the tensors beside it, as in NumPy.

    Raises:
        UnknownOperator: no table has it.
        BadTensor: shapes or dtypes do not fit.
    """
    rule = shape_rule(kind)
    tensors = _lifted(inputs)
    key = (kind, *sorted(attributes.items())) if attributes else kind
    try:
        hash(key)
        shape, dtype = rule(*tensors, **attributes)
    except TypeError:
        _check_call(kind, rule, tensors, attributes)
        raise
    return _tensor(TensorOp(kind=kind, attributes=attributes, key=key), tensors, shape, dtype)


def astype(value: TensorLike, dtype: Any) -> Tensor:
    """Return ``value`` as ``dtype``; the very tensor if it has it already."""
    (tensor,) = _lifted((value,))
    wanted = dtype_of(dtype)
    return tensor if tensor.dtype == wanted else apply("astype", tensor, dtype=wanted)


def dtype_of(dtype: Any) -> DType:
    """Return what NumPy takes ``dtype`` to mean; raises BadTensor unless that is of numbers or truth values."""
    try:
        found: DType = np.dtype(dtype)
    except (TypeError, ValueError):
        raise BadTensor(f"there is no dtype {brief(dtype)}") from None
    if found.kind not in "fiub":
        raise BadTensor(f"a tensor holds real numbers or truth values, its dtype cannot be {found}")
    return native(found)


def native(dtype: DType) -> DType:
    """Return a dtype in the order of bytes of this machine: kernels look at bits, and other backends know no other."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Put ``name`` before the names of the nodes made inside, as in ``block1/matmul_12``."""
    token = _scope.set(f"{_scope.get()}{name}/")
    try:
        yield
    finally:
        _scope.reset(token)


def brief(value: Any, most: int = 60) -> str:
    """Return how a value is written, in one line of at most so many characters, for errors."""
    return " ".join(repr(value).split())[:most]


def show(shape: Sequence[int]) -> str:
    """Return a shape as errors and drawings write it: ``(32, 10)``."""
    return str(tuple(shape))


def _function(name: str, *given: Any) -> Tensor:
    made: Tensor = FUNCTIONS[name](*given)
    return made


def _tensor(
    op: TensorOp, inputs: tuple[Tensor, ...], shape: tuple[int, ...], dtype: DType, name: str | None = None
) -> Tensor:
    serial = next(_numbers)
    return Tensor(
        name=name if name is not None else f"{_scope.get()}{op.kind}_{serial}",
        op=op,
        inputs=inputs,
        size_bytes=prod(shape) * dtype.itemsize,
        shape=shape,
        dtype=dtype,
        serial=serial,
    )


def _lifted(inputs: Sequence[TensorLike]) -> tuple[Tensor, ...]:
    if all(isinstance(each, Tensor) for each in inputs):
        return tuple(inputs)
    dtypes = [each.dtype for each in inputs if isinstance(each, (Tensor, np.ndarray, np.generic))]
    dtypes = [dtype for dtype in dtypes if dtype.kind in "fiub"]  # another is refused below
    lifted = []
    for each in inputs:
        if isinstance(each, Tensor):
            lifted.append(each)
        elif isinstance(each, (bool, int, float)) and dtypes:
            lifted.append(constant(each, np.result_type(*dtypes, each)))
        else:
            lifted.append(constant(each))
    return tuple(lifted)


def _check_call(
    kind: str, rule: Callable[..., Any], inputs: Sequence[Tensor], attributes: Mapping[str, Any]
) -> None:
    """Raise BadTensor if the operator takes another number of inputs, or other attributes."""
    try:
        hash(tuple(attributes.values()))
    except TypeError:
        raise BadTensor(
            f"{kind}: attributes are hashable values (tuples, not lists), got {brief(dict(attributes), 80)}"
        ) from None
    wanted = inspect.signature(rule)
    try:
        wanted.bind(*inputs, **attributes)
    except TypeError as error:
        raise BadTensor(
            f"{kind}: {error}, got {len(inputs)} inputs and the attributes {list(attributes)}"
        ) from None


def _key_of(array: np.ndarray[Any, Any]) -> Hashable:
    """Return what two equal small constants have in common; a large one equals itself alone."""
    return ("constant", array.dtype, array.shape, array.tobytes()) if array.nbytes <= 1024 else None
