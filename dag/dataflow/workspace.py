"""The buffers of a plan, and its steps as calls that have their arguments already.

Only inputs and outputs change from call to call, so only they are put into the argument lists; everything between lies in
one arena at places that were chosen before.  A workspace serves one call at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .memory_plan import ALIGNMENT_BYTES, MemoryPlan
from .tables import Kernel
from .tensor import Tensor

#: NumPy deprecates ``out`` as a third position for these.
KEYWORD_ONLY = (np.maximum, np.minimum)


class Workspace:
    """Memory for one call of a program.

    Args:
        inputs: in the order in which ``run`` takes their values.
        constants: the values of constants.
        kernels: of the node of each step.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        inputs: Sequence[Tensor],
        constants: Mapping[Tensor, Any],
        kernels: Mapping[Tensor, Kernel],
    ) -> None:
        self._kernels = kernels
        self._arena = _aligned_bytes(plan.arena_bytes)
        self._fixed: dict[Tensor, Any] = dict(constants)  # values that are the same arrays in every call
        self._at: dict[Tensor, int] = {node: at for at, node in enumerate(inputs)}  # the others, by register
        self._registers: list[Any] = [None] * len(inputs)
        self._fresh: list[tuple[int, tuple[int, ...], Any]] = []
        self._derived: list[tuple[Any, tuple[int, ...], int]] = []
        self._calls: list[tuple[Kernel, list[Any], dict[str, Any]]] = []
        self._nodes: list[Tensor] = []
        self._patches: list[tuple[Any, Any, int]] = []
        changing = self._changing_buffers(plan)
        for step in plan.steps:
            node = step.node
            if step.view:
                self._show(node)
                continue
            assert step.buffer is not None
            if step.buffer in changing:
                register, shape = changing[step.buffer]
                self._derive(None if shape == node.shape else _reshaped(node.shape), (register,), node)
            else:
                self._fixed[node] = self._in_arena(plan.buffers[step.buffer].offset_bytes, node)
            self._call(node)
        self._results = [self._register(node) for node in plan.outputs]
        self._copied_first, self._copied_last = plan.copied_first, plan.copied_last

    def run(self, given: Sequence[Any]) -> list[Any]:
        """Return the values of the outputs: fresh arrays, or those of donated inputs."""
        registers = self._registers.copy()
        registers[: len(given)] = given
        for number, shape, dtype in self._fresh:
            registers[number] = np.empty(shape, dtype)
        for kernel, sources, number in self._derived:
            registers[number] = kernel(*[registers[source] for source in sources])
        copied = {at: np.array(registers[self._results[at]], order="C") for at in self._copied_first}
        for place, key, number in self._patches:
            place[key] = registers[number]
        try:
            for kernel, taken, settings in self._calls:
                kernel(*taken, **settings)
        except Exception as error:
            error.add_note(self._where(taken))
            raise
        finally:
            for place, key, _ in self._patches:
                place[key] = None
        results = [registers[number] for number in self._results]
        for at in self._copied_last:
            results[at] = results[at].copy()
        for at, value in copied.items():
            results[at] = value
        return results

    def _changing_buffers(self, plan: MemoryPlan) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return the registers and shapes of the buffers that are other arrays in each call."""
        shapes = {
            step.buffer: step.node.shape
            for step in plan.steps
            if step.buffer is not None and not step.view and step.node in set(plan.outputs)
        }
        dtypes = {step.buffer: step.node.dtype for step in plan.steps if not step.view}
        changing = {}
        for number, buffer in enumerate(plan.buffers):
            if buffer.donor is not None:
                changing[number] = self._at[buffer.donor], buffer.donor.shape
            elif buffer.place == "fresh":
                changing[number] = len(self._registers), shapes[number]
                self._fresh.append((len(self._registers), shapes[number], dtypes[number]))
                self._registers.append(None)
        return changing

    def _in_arena(self, offset: int, node: Tensor) -> Any:
        return self._arena[offset : offset + node.size_bytes].view(node.dtype).reshape(node.shape)

    def _show(self, node: Tensor) -> None:
        """Make a view: now if it shows a fixed array, else in each call."""
        kernel = self._kernels[node]
        if all(source in self._fixed for source in node.inputs):
            self._fixed[node] = kernel(*[self._fixed[source] for source in node.inputs])
        else:
            self._derive(kernel, tuple(self._register(source) for source in node.inputs), node)

    def _derive(self, kernel: Any, sources: tuple[int, ...], node: Tensor) -> None:
        if kernel is None:
            self._at[node] = sources[0]
            return
        self._at[node] = len(self._registers)
        self._registers.append(None)
        self._derived.append((kernel, sources, self._at[node]))

    def _register(self, node: Tensor) -> int:
        if node not in self._at:
            self._at[node] = len(self._registers)
            self._registers.append(self._fixed[node])
        return self._at[node]

    def _call(self, node: Tensor) -> None:
        kernel = self._kernels[node]
        taken: list[Any] = []
        settings: dict[str, Any] = {}
        for source in node.inputs:
            self._argument(taken, source)
        if isinstance(kernel, np.ufunc) and kernel not in KEYWORD_ONLY:
            self._argument(taken, node)  # a position is faster than a keyword
        elif node in self._fixed:
            settings["out"] = self._fixed[node]
        else:
            self._patches.append((settings, "out", self._at[node]))
        self._calls.append((kernel, taken, settings))
        self._nodes.append(node)

    def _argument(self, taken: list[Any], node: Tensor) -> None:
        if node not in self._fixed:
            self._patches.append((taken, len(taken), self._at[node]))
        taken.append(self._fixed.get(node))

    def _where(self, taken: list[Any]) -> str:
        node = next(
            node for node, (_, given, _) in zip(self._nodes, self._calls, strict=True) if given is taken
        )
        return f"in the node {node.name!r} ({node.op.kind})"


def _reshaped(shape: tuple[int, ...]) -> Any:
    return lambda array: array.reshape(shape)


def _aligned_bytes(count: int) -> Any:
    whole = np.empty(count + ALIGNMENT_BYTES, np.uint8)
    start = -whole.__array_interface__["data"][0] % ALIGNMENT_BYTES
    return whole[start : start + count]
