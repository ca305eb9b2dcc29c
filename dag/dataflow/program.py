"""One rank's interpreter: a graph of tensors as a flat list of calls, run as often as wanted on new inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import BadTensor
from ..graph import Graph
from .backends import backend_named
from .tables import kernel_rule
from .tensor import Tensor, show
from .trees import flatten, values_like


class Program:
    """A graph made ready to run: call it with the values of its inputs, in their order.

    Args:
        outputs: a tensor, or nested dicts, lists and tuples of tensors; calls return arrays in the same nest.
        inputs: likewise; calls take one argument for each.
        backend: whose kernels compute: ``numpy``, ``torch``, ``torch:cuda``, ...  With arrays of the backend's own among the
            values given, the results are such arrays too, else NumPy's.
    """

    def __init__(self, outputs: Any, inputs: Sequence[Any], *, backend: str = "numpy") -> None:
        self._backend = backend_named(backend)
        self.outputs, self._rebuild = flatten(outputs)
        self._given = tuple(inputs)
        self.inputs, _ = flatten(self._given)
        self.graph = Graph(tuple(self.outputs))
        at = {node: number for number, node in enumerate(self.inputs)}
        self._constants: list[Any] = []
        self._steps: list[tuple[Any, tuple[int, ...], int]] = []
        for node in self.graph.nodes:
            assert isinstance(node, Tensor)
            if node in at:
                continue
            at[node] = len(at)
            if node.op.kind == "constant":
                value = self._backend.take(node.op.attributes["value"], node.dtype)
                self._constants.append((at[node], value))
            elif node.op.kind == "input":
                raise BadTensor(
                    f"the graph needs the input {node.name!r}, which is not among the inputs given"
                )
            else:
                sources = tuple(at[source] for source in node.inputs)
                self._steps.append(
                    (kernel_rule(node.op.kind, self._backend.kernels)(node), sources, at[node])
                )
        self._results = [at[node] for node in self.outputs]
        self._size = len(at)

    def __call__(self, *inputs: Any) -> Any:
        """Return the values of the outputs; raises BadTensor if an input has another shape."""
        given = values_like(self._given, inputs)
        values: list[Any] = [None] * self._size
        for number, (node, value) in enumerate(zip(self.inputs, given, strict=True)):
            array = self._backend.take(value, node.dtype)
            if tuple(array.shape) != node.shape:
                raise BadTensor(
                    f"input {node.name!r} has the shape {show(node.shape)}, got {show(array.shape)}"
                )
            values[number] = array
        for number, value in self._constants:
            values[number] = value
        for kernel, sources, number in self._steps:
            values[number] = kernel(*[values[source] for source in sources])
        return self._rebuild(self._backend.give([values[number] for number in self._results], given))


def evaluate(outputs: Any, inputs: Mapping[Tensor, Any] | None = None, *, backend: str = "numpy") -> Any:
    """Return the values of ``outputs`` once, given the values of the inputs."""
    given = inputs or {}
    return Program(outputs, list(given), backend=backend)(*given.values())
