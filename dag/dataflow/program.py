"""One rank's interpreter: a graph of tensors as a flat list of calls, run as often as wanted on new inputs.

Buffers are planned, allocated once and reused; results are arrays of their own, which later calls leave alone, but for donated
inputs, whose memory results may take.  Calls from several threads at once are safe: each has buffers of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BadTensor
from ..graph import Graph
from .backends import backend_named
from .finite import first_not_finite
from .memory_plan import MemoryPlan, Step, plan_memory
from .passes_all import optimise as rewritten
from .stepping import Values, live_bytes, run_by_step
from .tables import kernel_rule
from .tensor import Tensor, TensorOp, brief, show
from .trees import flatten, values_like
from .workspace import Workspace

Array = np.ndarray[Any, Any]
#: Results of this size and more are worth fusing.  Smaller ones stay in the caches by themselves, written in place: fused they
#: took up to a fifth longer (2 MiB), and half to nine tenths of the time from 16 MiB on.
FUSED_FROM_BYTES = 2**23


class Program:
    """A graph made ready to run: call it with the values of its inputs, in their order.

    It can be pickled, and plans again where it arrives.

    Args:
        outputs: a tensor, or nested dicts, lists and tuples of tensors; calls return arrays in the same nest.
        inputs: likewise; calls take one argument for each.
        backend: whose kernels compute: ``numpy``, ``torch``, ``torch:cuda``, ...  With arrays of the backend's own among the
            values given, the results are such arrays too, else NumPy's.
        optimise: rewrite the graph first (``dag.dataflow.optimise``, fusing large arrays only); the results keep every bit.
        check_nan: raise NotFinite at the first node that makes a NaN or an infinity of inputs that have none.  Runs without
            fusion and without reuse of buffers, and ignores ``donated``.
        donated: some of ``inputs``, or nests of them, whose arrays a call may overwrite with the results that replace them
            (parameters, the state of an optimiser).  A read-only, strided or converted array is copied instead.

    Raises:
        BadTensor: the graph needs an input that is not given, a donated tensor is no input, or something is no tensor.
        UnknownOperator: the backend has no kernel for an operator.
    """

    def __init__(
        self,
        outputs: Any,
        inputs: Sequence[Any],
        *,
        backend: str = "numpy",
        optimise: bool = True,
        check_nan: bool = False,
        donated: Any = (),
    ) -> None:
        self._backend = backend_named(backend)
        self._settings = {"backend": backend, "check_nan": check_nan}
        self.outputs, self._rebuild = flatten(outputs)
        self._given = tuple(inputs)
        self._flat = all(isinstance(each, Tensor) for each in self._given)
        self.inputs, self._rebuild_inputs = flatten(self._given)
        twice = next((each for each, count in Counter(self.inputs).items() if count > 1), None)
        if twice is not None:
            raise BadTensor(
                f"the input {brief(twice)} is there twice; which of two values it has would be unclear"
            )
        self._donated, _ = flatten(donated)
        for what, leaves in (("an output", self.outputs), ("an input", self.inputs)):
            for each in leaves:
                if not isinstance(each, Tensor):
                    raise BadTensor(f"{what} of a program is a tensor, got {brief(each)}")
        strange = [each for each in self._donated if each not in self.inputs]
        if strange:
            raise BadTensor(f"only inputs of the program can be donated; {strange[0]!r} is none")
        self.graph, entries = cut(Graph(tuple(self.outputs)), self.inputs)
        self._donated = [entries[each] for each in self._donated]
        self.inputs = [entries[each] for each in self.inputs]
        for node in self.graph.nodes:
            if node.op.kind == "input" and node not in entries.values():
                raise BadTensor(
                    f"the graph needs the input {node.name!r}, which is not among the inputs given"
                )
        if optimise and not check_nan:
            fused = self._backend.buffers  # others run the steps one by one
            self.graph = rewritten(self.graph, fused=fused, least_fused_bytes=FUSED_FROM_BYTES).graph
        self.outputs = list(self.graph.outputs)
        self._planned = self._backend.buffers and not check_nan
        self._check_nan = check_nan
        #: Where each value lives, and the bytes predicted.
        self.memory: MemoryPlan = plan_memory(
            self.graph, self._donated if self._planned else (), in_place=self._planned
        )
        self._overwritten = [
            at for at, each in enumerate(self.inputs) if self._planned and each in self._donated
        ]
        self._constants: Values = {
            node: self._backend.take(node.op.attributes["value"], node.dtype)
            for node in self.graph.nodes
            if isinstance(node, Tensor) and node.op.kind == "constant"
        }
        self._kernels = {
            step.node: kernel_rule(step.node.op.kind, self._backend.kernels)(step.node)
            for step in self.memory.steps
        }
        # A call takes a workspace from here and puts it back; one that finds none makes one (pop and append are atomic).
        self._idle: list[Workspace] = []

    def __call__(self, *inputs: Any) -> Any:
        """Return the values of the outputs.

        Raises:
            BadTensor: an input has another shape, or a dtype that cannot become its own; or donated arrays share memory.
            NotFinite: with ``check_nan``, at the node that made the first NaN or infinity.
        """
        given = inputs if self._flat and len(inputs) == len(self._given) else self._leaves(inputs)
        if not self._planned:
            values = self._by_step(given)
            return self._rebuild(self._backend.give([values[node] for node in self.outputs], given))
        arrays = [
            value
            if type(value) is np.ndarray and value.dtype == node.dtype and value.shape == node.shape
            else taken(node, value)
            for node, value in zip(self.inputs, given, strict=True)
        ]
        if self._overwritten:
            self._open_donated(arrays)
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = self._workspace()
        try:
            results = workspace.run(arrays)
        finally:
            self._idle.append(workspace)
        return self._rebuild(results)

    def run_once(self, *inputs: Any) -> Any:
        """Return the values of the outputs as a call does, and keep no buffers: each is dropped after its last use."""
        return self._run_apart(inputs, None) if self._planned else self(*inputs)

    def run_counted(self, *inputs: Any) -> tuple[Any, tuple[int, ...]]:
        """Return the values of the outputs, and the bytes of live arrays counted while each step of ``memory`` ran.

        Runs as ``run_once`` does.  The last count is taken while the outputs are handed over.

        Raises:
            ValueError: the backend allocates its results itself.
        """
        if not self._planned:
            raise ValueError("bytes are counted where buffers are planned: on numpy, without check_nan")
        counts: list[int] = []
        return self._run_apart(inputs, counts), tuple(counts)

    def _run_apart(self, inputs: Sequence[Any], counts: list[int] | None) -> Any:
        given = [taken(node, value) for node, value in zip(self.inputs, self._leaves(inputs), strict=True)]
        self._open_donated(given)
        arrays = {**self._constants, **dict(zip(self.inputs, given, strict=True))}
        copied = {at: np.array(arrays[self.outputs[at]], order="C") for at in self.memory.copied_first}

        def count(step: Step, values: Mapping[Tensor, Any]) -> None:
            assert counts is not None
            counts.append(live_bytes([*values.values(), *copied.values()], arrays.values()))

        watch = None if counts is None else count
        values = run_by_step(self.memory, self._kernels, arrays, buffers=True, watch=watch)
        results = [values[node] for node in self.outputs]
        for at in self.memory.copied_last:
            results[at] = results[at].copy()
        for at, value in copied.items():
            results[at] = value
        if counts is not None:
            counts.append(live_bytes([*values.values(), *results], arrays.values()))
        return self._rebuild(results)

    def __reduce__(self) -> tuple[Any, ...]:
        unbound = _unbound(self.graph)
        ends = [unbound[node] for node in self.outputs]
        nodes = list(dict.fromkeys((*self.inputs, *ends)))
        at = {node: number for number, node in enumerate(nodes)}
        outputs = self._rebuild([at[node] for node in ends])
        inputs = self._rebuild_inputs([at[node] for node in self.inputs])
        donated = [at[node] for node in self._donated]
        return _unpickled, (Graph(tuple(nodes)), outputs, inputs, donated, self._settings)

    def _leaves(self, inputs: Sequence[Any]) -> list[Any]:
        if len(inputs) != len(self._given):
            names = ", ".join(repr(each.name) if isinstance(each, Tensor) else "..." for each in self._given)
            raise BadTensor(f"the program takes {len(self._given)} inputs ({names}), got {len(inputs)}")
        try:
            return values_like(self._given, inputs)
        except ValueError as error:
            raise BadTensor(f"the inputs are not nested as the program's are: {error}") from None

    def _by_step(self, inputs: Sequence[Any]) -> Values:
        given = dict(self._constants)
        for node, value in zip(self.inputs, inputs, strict=True):
            foreign = hasattr(value, "shape") and not isinstance(value, (np.ndarray, np.generic))
            array = self._backend.take(value if foreign else taken(node, value), node.dtype)
            if tuple(array.shape) != node.shape:
                raise _wrong_shape(node, tuple(array.shape))
            given[node] = array
        if not self._check_nan:
            return run_by_step(self.memory, self._kernels, given, buffers=self._backend.buffers)
        watch = first_not_finite(self._backend, given)
        with np.errstate(all="ignore"):  # the node is named, so NumPy need not warn of it as well
            return run_by_step(self.memory, self._kernels, given, buffers=self._backend.buffers, watch=watch)

    def _workspace(self) -> Workspace:
        return Workspace(self.memory, self.inputs, self._constants, self._kernels)

    def _open_donated(self, arrays: list[Any]) -> None:
        """Copy the donated arrays that cannot be written to; refuse those that share memory with another input."""
        for at in self._overwritten:
            flags = arrays[at].flags
            if not (flags.c_contiguous and flags.writeable and flags.aligned):
                arrays[at] = np.array(arrays[at], order="C")
        stretches = sorted((*_stretch(array), at) for at, array in enumerate(arrays) if array.size)
        furthest: dict[
            bool, tuple[int, int]
        ] = {}  # by whether it is donated: the end of what came before, and whose
        for start, end, at in stretches:
            donated = at in self._overwritten
            for other in (True, False) if donated else (True,):
                before, whose = furthest.get(other, (start, at))
                if before > start:
                    raise BadTensor(
                        f"the arrays given for {self.inputs[whose].name!r} and {self.inputs[at].name!r} share memory, and one "
                        f"is donated: a result would overwrite the other; give a copy"
                    )
            furthest[donated] = max(furthest.get(donated, (end, at)), (end, at))


def cut(graph: Graph, inputs: Sequence[Tensor]) -> tuple[Graph, dict[Tensor, Tensor]]:
    """Return the graph with ``inputs`` for its inputs, and the input that stands for each: itself, if it is one already."""
    entries = {
        each: each if each.op.kind == "input" else replace(each, op=TensorOp(kind="input"), inputs=())
        for each in inputs
    }
    if all(each is entry for each, entry in entries.items()):
        return graph, entries
    became: dict[Any, Any] = {}
    for node in graph.nodes:
        moved = replace(node, inputs=tuple(became[source] for source in node.inputs)) if node.inputs else node
        became[node] = entries.get(node, moved)  # type: ignore[call-overload]
    return Graph(tuple(became[node] for node in graph.outputs)), entries


def _unbound(graph: Graph) -> dict[Tensor, Tensor]:
    """Return what stands for each node in a graph whose calls have no gradient rule.

    A run asks for none, and it may be a function of the caller's that cannot be pickled.
    """
    became: dict[Any, Any] = {}
    for node in graph.nodes:
        sources = tuple(became[source] for source in node.inputs)
        if node.op.kind == "call":
            became[node] = replace(node, op=TensorOp(kind="call"), inputs=sources)
        else:
            became[node] = node if sources == node.inputs else replace(node, inputs=sources)
    return became


def _stretch(array: Array) -> tuple[int, int]:
    """Return where the memory of an array starts and ends."""
    if not array.flags.c_contiguous:
        return np.lib.array_utils.byte_bounds(array)
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


def taken(node: Tensor, value: Any) -> Array:
    """Return a value as the array of an input's shape and dtype, converted where nothing but rounding is lost."""
    array = np.asarray(value)
    if array.shape != node.shape:
        raise _wrong_shape(node, array.shape)
    if array.dtype == node.dtype:
        return array
    if not np.can_cast(array.dtype, node.dtype, "same_kind") and array.size:
        raise BadTensor(
            f"input {node.name!r} has the dtype {node.dtype}, got {array.dtype}: convert it with astype"
        )
    made = array.astype(node.dtype)
    if node.dtype.kind in "iu" and not np.array_equal(made, array):
        raise BadTensor(
            f"input {node.name!r} has the dtype {node.dtype}, which cannot hold all of the {array.dtype} given"
        )
    return made


def _wrong_shape(node: Tensor, shape: tuple[int, ...]) -> BadTensor:
    return BadTensor(f"input {node.name!r} has the shape {show(node.shape)}, got {show(shape)}")


def _unpickled(
    graph: Graph, outputs: Any, inputs: Any, donated: list[int], settings: dict[str, Any]
) -> Program:
    nodes = graph.outputs

    def put(tree: Any) -> Any:
        leaves, rebuild = flatten(tree)
        return rebuild([nodes[at] for at in leaves])

    return Program(put(outputs), put(inputs), donated=put(donated), optimise=False, **settings)
