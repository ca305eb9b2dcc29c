"""An example of every tensor operator: random inputs, and NumPy's own answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from dag_cases import Array, Case, Chance, convolve, slope, softmax
from hypothesis import strategies as st

from dag import dataflow as df
from dag.dataflow.tables import GRADIENTS


def _one(kind: str, values: str = "normal") -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        array = getattr(chance, values)(chance.shape())
        return Case(apply=lambda x: df.apply(kind, x), expected=getattr(np, kind), arrays=[array])

    return make


def _two(kind: str, left: str = "normal", right: str = "normal") -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        one, two = chance.together(2)
        arrays = [getattr(chance, left)(one), getattr(chance, right)(two)]
        return Case(apply=lambda a, b: df.apply(kind, a, b), expected=getattr(np, kind), arrays=arrays)

    return make


def _larger(kind: str) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        one, two = chance.together(2)
        arrays = [chance.apart(one), chance.apart(two) + 0.1]
        near = np.abs(arrays[0] - arrays[1]) < 0.01 if 0 not in (*one, *two) else np.array(False)
        if near.any():
            arrays[1] = arrays[1] + 0.05
        return Case(apply=lambda a, b: df.apply(kind, a, b), expected=getattr(np, kind), arrays=arrays)

    return make


def _divided(kind: str) -> Callable[[Chance], Case]:
    """Quotients that lie between whole numbers, so that none becomes another in a small step."""

    def make(chance: Chance) -> Case:
        one, two = chance.together(2)
        left = chance.integers(one, 7) - 2.5 + 0.1 * chance.random.random(one)
        right = (1 + 0.02 * chance.random.random(two)) * np.where(chance.truth(two), 1, -1)
        return Case(apply=lambda a, b: df.apply(kind, a, b), expected=getattr(np, kind), arrays=[left, right])

    return make


def _where(chance: Chance) -> Case:
    shapes = chance.together(3)
    arrays = [chance.truth(shapes[0]), chance.normal(shapes[1]), chance.normal(shapes[2])]
    return Case(apply=df.where, expected=np.where, arrays=arrays)


def _relu(chance: Chance) -> Case:
    return Case(
        apply=df.relu, expected=lambda x: np.where(x > 0, x, 0), arrays=[chance.apart(chance.shape())]
    )


def _sigmoid(chance: Chance) -> Case:
    x = 10 * chance.normal(chance.shape())
    return Case(apply=df.sigmoid, expected=lambda x: 0.5 + 0.5 * np.tanh(x / 2), arrays=[x])


def _astype(chance: Chance) -> Case:
    dtype = np.dtype(chance.one("int32", "bool", "float64") if chance.one(0, 1) else "float64")
    x = chance.normal(chance.shape())
    return Case(
        apply=lambda x: df.apply("astype", x, dtype=dtype), expected=lambda x: x.astype(dtype), arrays=[x]
    )


def _reshape(chance: Chance) -> Case:
    shape = chance.shape()
    new = chance.one(tuple(reversed(shape)), (*shape, 1), (1, int(np.prod(shape))))
    return Case(
        apply=lambda x: df.reshape(x, new), expected=lambda x: x.reshape(new), arrays=[chance.normal(shape)]
    )


def _transpose(chance: Chance) -> Case:
    shape = chance.shape()
    axes = tuple(chance.draw(st.permutations(range(len(shape)))))
    return Case(
        apply=lambda x: df.apply("transpose", x, axes=axes), expected=lambda x: x.transpose(axes),
        arrays=[chance.normal(shape)],
    )  # fmt: skip


def _broadcast_to(chance: Chance) -> Case:
    wide, narrow = _wide_and_narrow(chance)
    return Case(
        apply=lambda x: df.apply("broadcast_to", x, shape=wide), expected=lambda x: np.broadcast_to(x, wide),
        arrays=[chance.normal(narrow)],
    )  # fmt: skip


def _sum_to(chance: Chance) -> Case:
    wide, narrow = _wide_and_narrow(chance)
    lead = len(wide) - len(narrow)
    axes = tuple(at for at in range(len(wide)) if at < lead or narrow[at - lead] == 1)
    return Case(
        apply=lambda x: df.apply("sum_to", x, shape=narrow),
        expected=lambda x: x.sum(axes, keepdims=True).reshape(narrow), arrays=[chance.normal(wide)],
    )  # fmt: skip


def _wide_and_narrow(chance: Chance) -> tuple[tuple[int, ...], tuple[int, ...]]:
    wide = chance.shape()
    kept = wide[chance.draw(st.integers(0, len(wide))) :]
    return wide, tuple(chance.one(length, 1) for length in kept)


def _slices(chance: Chance, shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(chance.draw(st.slices(length)) for length in shape)


def _slice(chance: Chance) -> Case:
    shape = chance.shape()
    index = _slices(chance, shape)
    return Case(apply=lambda x: x[index], expected=lambda x: x[index], arrays=[chance.normal(shape)])


def _place(chance: Chance) -> Case:
    shape = chance.shape()
    slices = _slices(chance, shape)
    spans = []
    for part, length in zip(slices, shape, strict=True):
        start, stop, step = part.indices(length)
        spans.append((start, step, len(range(start, stop, step))))
    fill = chance.one(0, 2.5)

    def expected(x: Array) -> Array:
        made = np.full(shape, fill, x.dtype)
        made[slices] = x
        return made

    return Case(
        apply=lambda x: df.apply("place", x, shape=tuple(shape), spans=tuple(spans), fill=fill), expected=expected,
        arrays=[chance.normal([count for _, _, count in spans])],
    )  # fmt: skip


def _concatenate(chance: Chance) -> Case:
    shape = list(chance.shape(1))
    axis = chance.axis(shape)
    arrays = []
    for _ in range(chance.one(1, 2, 3)):
        arrays.append(chance.normal([chance.one(0, 1, 3) if at == axis else n for at, n in enumerate(shape)]))
    return Case(
        apply=lambda *values: df.apply("concatenate", *values, axis=axis),
        expected=lambda *values: np.concatenate(values, axis), arrays=arrays,
    )  # fmt: skip


def _fold(kind: str, values: str, side: int = 0) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        shape = chance.shape(side=side)
        axis, keepdims = chance.axes(shape), chance.one(True, False)
        return Case(
            apply=lambda x: df.apply(kind, x, axis=axis, keepdims=keepdims),
            expected=lambda x: getattr(np, kind)(x, axis=axis, keepdims=keepdims),
            arrays=[getattr(chance, values)(shape)],
        )

    return make


def _arg(kind: str) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        shape = chance.shape(1, side=1)
        axis = chance.axis(shape)
        array = chance.integers(shape, 3).astype(np.float64)
        return Case(
            apply=lambda x: df.apply(kind, x, axis=axis), expected=lambda x: getattr(np, kind)(x, axis), arrays=[array]
        )  # fmt: skip

    return make


def _cumsum(chance: Chance) -> Case:
    shape = chance.shape(1)
    axis, reverse = chance.axis(shape), chance.one(True, False)

    def expected(x: Array) -> Array:
        return np.flip(np.flip(x, axis).cumsum(axis), axis) if reverse else x.cumsum(axis)

    return Case(
        apply=lambda x: df.apply("cumsum", x, axis=axis, reverse=reverse), expected=expected,
        arrays=[chance.normal(shape)],
    )  # fmt: skip


def _matmul(chance: Chance) -> Case:
    one, two = chance.together(2)
    n, k, m = (chance.one(0, 1, 2, 3) for _ in range(3))
    arrays = [chance.normal((*one[-2:], n, k)), chance.normal((*two[-2:], k, m))]
    return Case(apply=lambda a, b: df.apply("matmul", a, b), expected=np.matmul, arrays=arrays)


def _convolution(kind: str) -> Callable[[Chance], Case]:
    """The three operators are one trilinear form in (images, weights, places); each is its slope by one of the three."""

    def make(chance: Chance) -> Case:
        stride, padding = (chance.one(1, 2), chance.one(1, 2)), (chance.one(0, 1), chance.one(0, 1))
        high, wide = chance.one(1, 2, 3), chance.one(1, 2)
        x = chance.normal(
            (chance.one(0, 1, 2), chance.one(1, 2), high + chance.one(0, 2), wide + chance.one(0, 3))
        )
        w = chance.normal((chance.one(1, 2), x.shape[1], high, wide))
        g = chance.normal(convolve(x, w, stride, padding).shape)
        how = {"stride": stride, "padding": padding}
        if kind == "conv2d":
            return Case(
                apply=lambda x, w: df.conv2d(x, w, **how), expected=lambda x, w: convolve(x, w, **how), arrays=[x, w]
            )  # fmt: skip
        if kind == "conv2d_to_images":
            return Case(
                apply=lambda g, w: df.apply(kind, g, w, shape=x.shape, **how),
                expected=lambda g, w: slope(lambda x: convolve(x, w, **how), x.shape, g), arrays=[g, w],
            )  # fmt: skip
        return Case(
            apply=lambda x, g: df.apply(kind, x, g, shape=w.shape, **how),
            expected=lambda x, g: slope(lambda w: convolve(x, w, **how), w.shape, g), arrays=[x, g],
        )  # fmt: skip

    return make


def _rows(kind: str, expected: Callable[[Array, int], Array]) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        shape = list(chance.shape(1))
        axis = chance.axis(shape)
        shape[axis] = max(shape[axis], 1)
        return Case(
            apply=lambda x: df.apply(kind, x, axis=axis), expected=lambda x: expected(x, axis),
            arrays=[2 * chance.normal(shape)],
        )  # fmt: skip

    return make


def _labelled(chance: Chance) -> tuple[Array, Array]:
    logits = 2 * chance.normal((*chance.shape(0, 2), chance.one(1, 2, 4)))
    return logits, chance.integers(logits.shape[:-1], logits.shape[-1])


def _cross_entropy(chance: Chance) -> Case:
    def expected(x: Array, labels: Array) -> Array:
        return -np.log(np.take_along_axis(softmax(x), labels[..., None], -1)[..., 0])

    return Case(apply=df.softmax_cross_entropy, expected=expected, arrays=_labelled(chance))


def _cross_entropy_gradient(chance: Chance) -> Case:
    logits, labels = _labelled(chance)

    def expected(g: Array, x: Array, labels: Array) -> Array:
        return g[..., None] * (softmax(x) - np.eye(x.shape[-1])[labels])

    return Case(
        apply=lambda *values: df.apply("softmax_cross_entropy_gradient", *values), expected=expected,
        arrays=[chance.normal(labels.shape), logits, labels],
    )  # fmt: skip


def _normalising(kind: str, expected: Callable[[Array], Array]) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        x = chance.normal((*chance.shape(0, 2), chance.one(2, 3, 5)))
        return Case(apply=lambda x: df.apply(kind, x, epsilon=0.1), expected=expected, arrays=[x])

    return make


def _taking(kind: str) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        shape = list(chance.shape(1))
        axis = chance.axis(shape)
        shape[axis] += 1
        ids = chance.integers(chance.shape(0, 2), shape[axis])
        if kind == "take":
            return Case(
                apply=lambda x, ids: df.apply("take", x, ids, axis=axis), expected=lambda x, ids: np.take(x, ids, axis),
                arrays=[chance.normal(shape), ids],
            )  # fmt: skip

        def expected(g: Array, ids: Array) -> Array:
            made = np.zeros(shape)
            np.add.at(made, (slice(None),) * axis + (ids,), g)
            return made

        g = chance.normal((*shape[:axis], *ids.shape, *shape[axis + 1 :]))
        return Case(
            apply=lambda g, ids: df.apply("scatter_add", g, ids, axis=axis, length=shape[axis]), expected=expected,
            arrays=[g, ids],
        )  # fmt: skip

    return make


def _along(kind: str) -> Callable[[Chance], Case]:
    def make(chance: Chance) -> Case:
        shape = list(chance.shape(1))
        axis = chance.axis(shape)
        shape[axis] += 1
        count = chance.one(0, 1, 4)
        ids = chance.integers([count if at == axis else n for at, n in enumerate(shape)], shape[axis])
        if kind == "take_along_axis":
            return Case(
                apply=lambda x, ids: df.apply(kind, x, ids, axis=axis),
                expected=lambda x, ids: np.take_along_axis(x, ids, axis), arrays=[chance.normal(shape), ids],
            )  # fmt: skip

        def expected(g: Array, ids: Array) -> Array:
            made = np.zeros(shape)
            for at in np.ndindex(*ids.shape):
                made[(*at[:axis], ids[at], *at[axis + 1 :])] += g[at]
            return made

        return Case(
            apply=lambda g, ids: df.apply(kind, g, ids, axis=axis, length=shape[axis]), expected=expected,
            arrays=[chance.normal(ids.shape), ids],
        )  # fmt: skip

    return make


def _one_hot(chance: Chance) -> Case:
    depth = chance.one(1, 2, 4)
    return Case(
        apply=lambda ids: df.one_hot(ids, depth, np.float64), expected=lambda ids: np.eye(depth)[ids],
        arrays=[chance.integers(chance.shape(), depth)],
    )  # fmt: skip


COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
EXAMPLES: dict[str, Callable[[Chance], Case]] = {
    **{kind: _two(kind) for kind in ("add", "subtract", "multiply")},
    **{kind: _one(kind) for kind in ("negative", "square", "exp", "expm1", "tanh", "sin", "cos")},
    **{kind: _one(kind, "positive") for kind in ("sqrt", "log", "log1p")},
    **{kind: _one(kind, "apart") for kind in ("absolute", "sign", "floor", "ceil")},
    **{kind: _one(kind) for kind in ("isnan", "isinf", "isfinite")},
    **{kind: _larger(kind) for kind in ("maximum", "minimum")},
    **{kind: _two(kind, "normal", "normal") for kind in COMPARISONS},
    **{kind: _two(kind, "truth", "truth") for kind in LOGICAL},
    "logical_not": _one("logical_not", "truth"),
    "divide": _two("divide", "normal", "positive"),
    **{kind: _divided(kind) for kind in ("floor_divide", "remainder")},
    "power": _two("power", "positive", "normal"),
    "where": _where,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "astype": _astype,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "slice": _slice,
    "place": _place,
    "concatenate": _concatenate,
    "sum": _fold("sum", "normal"),
    "sum_to": _sum_to,
    "max": _fold("max", "apart", 1),
    "min": _fold("min", "apart", 1),
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "cumsum": _cumsum,
    "matmul": _matmul,
    **{kind: _convolution(kind) for kind in ("conv2d", "conv2d_to_images", "conv2d_to_weights")},
    "softmax": _rows("softmax", softmax),
    "log_softmax": _rows("log_softmax", lambda x, axis: np.log(softmax(x, axis))),
    "logsumexp": _rows("logsumexp", lambda x, axis: np.log(np.exp(x).sum(axis))),
    "softmax_cross_entropy": _cross_entropy,
    "softmax_cross_entropy_gradient": _cross_entropy_gradient,
    "normalise": _normalising(
        "normalise", lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    ),
    "inverse_deviation": _normalising(
        "inverse_deviation", lambda x: 1 / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    ),
    "take": _taking("take"),
    "scatter_add": _taking("scatter_add"),
    "take_along_axis": _along("take_along_axis"),
    "scatter_along_axis": _along("scatter_along_axis"),
    "one_hot": _one_hot,
}  # fmt: skip

#: They mark a place in a graph or run other operators, and are tested where those marks and passes are.
MARKS = {"barrier", "call", "call_result", "fused", "identity", "stop_gradient"}

#: The operators with a derivative to check.
SMOOTH = sorted(kind for kind in EXAMPLES if GRADIENTS[kind] is not None and kind != "one_hot")
