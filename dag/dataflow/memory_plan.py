"""Where each value of a graph lives and until when, decided before it runs.

A value gets memory of its own, or is a view of another, or is written over an input that dies there.  Memory whose values all
come and go inside one call has a place in an arena, which a program keeps from call to call; outputs get memory that is fresh in
each call, or that of a donated input.  Predicted bytes are those of live arrays: what the steps allocate, outputs among them from
the step that makes them.  Inputs (donated ones too) and constants are the caller's and count apart; scratch memory
inside a kernel does not count.

Nothing here allocates or runs: ``Program`` does, and counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadTensor
from ..graph import Graph
from .inputs import graph_of
from .memory_order import anti_dependencies, order_for_memory
from .memory_views import Storages
from .tables import TRAITS
from .tensor import Tensor

# What SIMD loads and cache lines like.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """Memory for one value after another.

    Args:
        place: "arena", "fresh" (allocated by each call) or "donated" (an input's).
        size_bytes: of the values in it, which all have this size.
        offset_bytes: from the start of the arena; 0 elsewhere.
        first: the step that makes its first value.
        last: the last step that needs it; for outputs the number of steps.
        donor: the input whose memory it is.
    """

    place: str
    size_bytes: int
    first: int
    last: int
    offset_bytes: int = 0
    donor: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """The making of one value.

    Args:
        node: whose value.
        buffer: the number of the buffer that holds it; for a view that of what it shows, or None if that is an input or a
            constant.
        view: nothing is computed or written.
        over: the input in whose memory the result is written.
        frees: the buffers that no later step needs.
    """

    node: Tensor
    buffer: int | None
    view: bool = False
    over: Tensor | None = None
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Where the values of a graph live.

    Args:
        outputs: of the graph, in order.
        steps: one for each node that is no input and no constant, in the order in which they run.
        buffers: by number.
        copied_first: positions of outputs that are inputs or constants, copied before the first step.
        copied_last: positions of outputs that are views, or that an earlier position has too, copied after the last step.
        live_bytes: while each step runs, and at last while the outputs are handed over.
        arena_bytes: what the buffers in the arena need together, gaps and alignment included.
        input_bytes: of all inputs that the graph needs.
        constant_bytes: of all constants.
    """

    outputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    copied_first: tuple[int, ...]
    copied_last: tuple[int, ...]
    live_bytes: tuple[int, ...]
    arena_bytes: int
    input_bytes: int
    constant_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes of live arrays at any step."""
        return max(self.live_bytes)

    @property
    def fresh_bytes(self) -> int:
        """What each call allocates for outputs, copies included."""
        copied = (self.outputs[at].size_bytes for at in (*self.copied_first, *self.copied_last))
        return sum(copied) + sum(each.size_bytes for each in self.buffers if each.place == "fresh")

    @property
    def in_place(self) -> int:
        """How many nodes are written over an input."""
        return sum(step.over is not None for step in self.steps)


def plan_memory(
    graph: Graph | Any,
    donated: Collection[Tensor] = (),
    *,
    in_place: bool = True,
    reorder: bool = True,
) -> MemoryPlan:
    """Return where each value of ``graph``, or of a tree of tensors, lives and until when.

    Args:
        donated: inputs whose memory may be overwritten by an output of the same shape and dtype.  An output takes it only where
            every reader of the input has run by then, and steps are ordered so that they have if they can; else it gets fresh
            memory.
        in_place: write elementwise results over an input of the same shape and dtype that no later step needs.
        reorder: take the order of ``order_for_memory`` where its peak is below that of the graph's own order.

    Raises:
        BadTensor: a donated tensor is no input.
    """
    graph = graph_of(graph)
    for each in donated:
        if each.op.kind != "input":
            raise BadTensor(f"only inputs can be donated; {each.name!r} is made by {each.op.kind!r}")
    tensors = [node for node in graph.nodes if isinstance(node, Tensor)]
    given = {node for node in tensors if node.op.kind in ("input", "constant")}
    made = [node for node in tensors if node not in given]
    storages = Storages(made, outputs=graph.outputs, given=given)
    pairs = _pairs(graph, given, [each for each in donated if each in given])
    late = anti_dependencies(made, storages, pairs)
    orders = [order_for_memory(made, storages, late, greedy=False)]
    if reorder:
        orders.append(order_for_memory(made, storages, late, greedy=True))
    plans = [_Planner(graph, storages, given, pairs, in_place).plan(order) for order in orders]
    return min(plans, key=lambda plan: plan.peak_bytes)


def _pairs(graph: Graph, given: set[Tensor], donated: Collection[Tensor]) -> dict[Tensor, Tensor]:
    """Return the donated input whose memory each output may take: one that it reads itself, else the first that fits."""
    free = dict.fromkeys(donated)
    outputs = [
        node for node in dict.fromkeys(graph.outputs) if isinstance(node, Tensor) and node not in given
    ]
    found: dict[Tensor, Tensor] = {}
    for output in outputs:
        for source in output.inputs:
            if output not in found and source in free and _fits(source, output):
                found[output] = source
                del free[source]
    by_kind: dict[object, list[Tensor]] = {}
    for each in reversed(free):
        by_kind.setdefault((each.shape, each.dtype), []).append(each)
    for output in outputs:
        waiting = by_kind.get((output.shape, output.dtype))
        if output not in found and waiting:
            found[output] = waiting.pop()
    return found


def _fits(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype


@dataclass(kw_only=True)
class _Open:
    """A buffer while the plan is made; ``tenant`` is the value in it."""

    size_bytes: int
    first: int
    tenant: Tensor
    donor: Tensor | None = None
    holds_output: bool = False
    last: int = -1


@dataclass
class _Planner:
    """One walk over the steps in their order."""

    graph: Graph
    storages: Storages
    given: set[Tensor]
    pairs: dict[Tensor, Tensor]
    in_place: bool
    opened: list[_Open] = field(default_factory=list)
    held: dict[Tensor, int] = field(default_factory=dict)  # the buffer of each value with memory of its own
    readers: dict[Tensor, int] = field(
        default_factory=dict
    )  # steps that have still to read it or a view of it

    def plan(self, order: Sequence[Tensor]) -> MemoryPlan:
        """Return the plan for this order."""
        self.readers = self.storages.uses()
        wanted = [node for node in self.graph.outputs if isinstance(node, Tensor)]
        first, last = _copied(wanted, self.given, self.storages.views)
        for donor in self.pairs.values():
            self.held[donor] = self._open(donor, 0, donor)
        live = sum(wanted[at].size_bytes for at in first)
        live_bytes, steps = [], []
        for at, node in enumerate(order):
            view = node in self.storages.views
            over, number = None, self.held.get(self.storages.owner[node])
            if not view:
                opened_before = len(self.opened)
                number, over = self._place(node, at)
                live += node.size_bytes if len(self.opened) > opened_before else 0
            live_bytes.append(live)
            frees = self._after(node, at)
            live -= sum(self.opened[each].size_bytes for each in frees)
            steps.append(Step(node=node, buffer=number, view=view, over=over, frees=frees))
        live_bytes.append(live + sum(wanted[at].size_bytes for at in last))
        buffers = [_closed(each, len(order), each.tenant in self.storages.kept) for each in self.opened]
        placed, arena_bytes = _lay_out(buffers, steps)
        return MemoryPlan(
            outputs=tuple(wanted), steps=tuple(steps), buffers=placed, copied_first=first, copied_last=last,
            live_bytes=tuple(live_bytes), arena_bytes=arena_bytes,
            input_bytes=sum(each.size_bytes for each in self.given if each.op.kind != "constant"),
            constant_bytes=sum(each.size_bytes for each in self.given if each.op.kind == "constant"),
        )  # fmt: skip

    def _open(self, tenant: Tensor, at: int, donor: Tensor | None = None) -> int:
        self.opened.append(_Open(size_bytes=tenant.size_bytes, first=at, tenant=tenant, donor=donor))
        return len(self.opened) - 1

    def _place(self, node: Tensor, at: int) -> tuple[int, Tensor | None]:
        """Return the buffer of a node, a new one perhaps, and the input that it is written over."""
        number, over = None, None
        donor = self.pairs.get(node)
        if donor in self.held:
            number, over = self._in_donor(node, self.held[donor])
        if number is None and self.in_place:
            over = next((source for source in node.inputs if self._may_overwrite(node, source)), None)
            number = None if over is None else self.held[self.storages.owner[over]]
        if number is None:
            number = self._open(node, at)
        self.held[node] = number
        self.opened[number].tenant = node
        self.opened[number].holds_output |= node in self.storages.outputs
        return number, over

    def _in_donor(self, node: Tensor, number: int) -> tuple[int | None, Tensor | None]:
        """Return the donated buffer and what is overwritten there, or None if its value is still read."""
        opened = self.opened[number]
        if opened.holds_output:
            return None, None
        if opened.tenant not in self.storages.reads[node]:
            return (number if self.readers[opened.tenant] == 0 else None), None
        for source in node.inputs:
            if self.storages.owner[source] is opened.tenant and self._may_overwrite(node, source):
                return number, source
        return None, None

    def _may_overwrite(self, node: Tensor, source: Tensor) -> bool:
        """Return whether a node may be written over an input: it goes element by element, and reads it last and whole."""
        owner = self.storages.owner[source]
        number = self.held.get(owner)
        if number is None or not TRAITS[node.op.kind].elementwise or not _fits(source, node):
            return False
        if self.opened[number].holds_output or source not in self.storages.whole or self.readers[owner] != 1:
            return False
        # Another view of the same memory would be read at other places than those just written.
        return all(each is source or self.storages.owner[each] is not owner for each in node.inputs)

    def _after(self, node: Tensor, at: int) -> tuple[int, ...]:
        """Count the reads of a step; return the buffers, donated ones left out, that are free now."""
        freed = []
        owner_of_result = () if node in self.storages.views else (node,)
        for owner in self.storages.reads[node]:
            self.readers[owner] -= 1
        for owner in (*self.storages.reads[node], *owner_of_result):
            if owner not in self.held:
                continue
            opened = self.opened[self.held[owner]]
            opened.last = at
            unused = opened.tenant is owner and self.readers[owner] == 0 and not opened.holds_output
            if unused and opened.donor is None:
                freed.append(self.held[owner])
        return tuple(freed)


def _copied(
    outputs: Sequence[Tensor], given: Collection[Tensor], views: Collection[Tensor]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the positions of outputs that are copied before the first step, and of those that are after the last."""
    first = tuple(at for at, node in enumerate(outputs) if node in given)
    earliest = {node: at for at, node in reversed(list(enumerate(outputs)))}
    again = (at for at, node in enumerate(outputs) if node in views or earliest[node] != at)
    return first, tuple(at for at in again if at not in first)


def _closed(opened: _Open, steps: int, kept: bool) -> Buffer:
    place = "donated" if opened.donor is not None else "fresh" if opened.holds_output else "arena"
    return Buffer(
        place=place, size_bytes=opened.size_bytes, first=opened.first, donor=opened.donor,
        last=steps if kept or opened.holds_output else opened.last,
    )  # fmt: skip


def _lay_out(buffers: Sequence[Buffer], steps: Sequence[Step]) -> tuple[tuple[Buffer, ...], int]:
    """Return the buffers with their places in the arena, and its size: best fit, in the order of the steps."""
    placed = list(buffers)
    starts: dict[int, list[int]] = {}
    for number, each in enumerate(buffers):
        if each.place == "arena":
            starts.setdefault(each.first, []).append(number)
    arena = _Arena()
    for at, step in enumerate(steps):
        for number in starts.get(at, ()):
            offset = arena.take(_aligned(buffers[number].size_bytes))
            placed[number] = replace(buffers[number], offset_bytes=offset)
        for number in step.frees:
            if buffers[number].place == "arena":
                arena.give_back(placed[number].offset_bytes, _aligned(buffers[number].size_bytes))
    return tuple(placed), arena.size_bytes


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class _Arena:
    """Free stretches of memory, neighbours joined."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._free: list[tuple[int, int]] = []  # (offset, size), by offset

    def take(self, size_bytes: int) -> int:
        """Return the place of the smallest stretch that is large enough; the arena grows if none is."""
        if size_bytes == 0:
            return 0
        fits = [(size, at) for at, (_, size) in enumerate(self._free) if size >= size_bytes]
        if fits:
            size, at = min(fits)
            offset, _ = self._free[at]
            self._free[at : at + 1] = [(offset + size_bytes, size - size_bytes)] if size > size_bytes else []
            return offset
        offset = self.size_bytes
        if self._free and sum(self._free[-1]) == self.size_bytes:
            offset, _ = self._free.pop()
        self.size_bytes = offset + size_bytes
        return offset

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Free a stretch."""
        if size_bytes == 0:
            return
        at = next((at for at, (start, _) in enumerate(self._free) if start > offset), len(self._free))
        end = offset + size_bytes
        if at < len(self._free) and self._free[at][0] == end:
            end += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == offset:
            at -= 1
            offset = self._free.pop(at)[0]
        self._free.insert(at, (offset, end - offset))
