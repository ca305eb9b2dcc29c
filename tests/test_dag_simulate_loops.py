"""The simulator's arrays against its model in plain loops over single messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dag.collectives import Link, Network, Schedule, simulate
from dag.collectives.schedule import FOLD, REPLACE, Step, bounds, moves


@dataclass
class Message:
    """One move on its way: when its first and its last byte are where it is now."""

    src: int
    dst: int
    nbytes: float
    folds: bool
    far: bool
    takes: float
    first: float
    last: float


class Loops:
    """The model as the module describes it: no arrays, no short cuts."""

    def __init__(self, nodes: int, network: Network) -> None:
        self.now = [0.0] * nodes
        self.free: dict[tuple[str, str, int], float] = {}
        self.network = network

    def step(self, step: Step, size: list[float]) -> None:
        network, before = self.network, list(self.now)
        sent: dict[int, int] = {}
        messages = []
        for src, dst, start, stop, mode in zip(
            *(getattr(step, name).tolist() for name in ("src", "dst", "start", "stop", "mode")), strict=True
        ):
            if nbytes := sum(size[start:stop]):
                far = src // network.per_machine != dst // network.per_machine
                sent[src] = sent.get(src, 0) + 1
                ready = before[src] + network.overhead_s * sent[src]
                takes = nbytes * (network.across if far else network.inside).s_per_byte
                messages.append(Message(src, dst, nbytes, mode == FOLD, far, takes, ready, ready))
        self.serve_all("out", messages)
        for each in messages:
            self.now[each.src] = max(self.now[each.src], each.last)
            latency_s = (network.across if each.far else network.inside).latency_s
            each.first += latency_s
            each.last += latency_s
        self.serve_all("in", messages)
        for each in messages:
            self.now[each.dst] = max(self.now[each.dst], each.last)
        for each in messages:
            self.now[each.dst] += each.nbytes * network.reduce_s_per_byte * each.folds

    def serve_all(self, way: str, messages: list[Message]) -> None:
        queues: dict[tuple[str, str, int], list[Message]] = {}
        for each in messages:
            node = each.src if way == "out" else each.dst
            shared = each.far and self.network.per_machine > 1
            link = ("machine", node // self.network.per_machine) if shared else ("node", node)
            queues.setdefault((way, *link), []).append(each)
        for key, waiting in queues.items():
            self.serve(key, waiting)

    def serve(self, key: tuple[str, str, int], waiting: list[Message]) -> None:
        """One link: in the order in which they are ready; a machine's serves those together that are ready at about once."""
        for each in waiting:
            each.first = max(each.first, self.free.get(key, 0.0))
        groups: list[list[Message]] = []
        for each in sorted(waiting, key=lambda each: each.first):
            near = bool(groups) and each.first - groups[-1][-1].first <= each.takes * 0.500001
            if key[1] == "machine" and near:
                groups[-1].append(each)
            else:
                groups.append([each])
        until = 0.0
        for group in groups:
            begin = max(until, group[0].first)
            for each in group:
                until = max(until, each.first) + each.takes
            for each in group:
                each.first, each.last = max(begin, each.first), max(each.last, until)
        self.free[key] = until


PARTS = 3
RANKS = 7


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    pair = st.tuples(st.integers(0, RANKS - 1), st.integers(0, RANKS - 1)).filter(
        lambda pair: pair[0] != pair[1]
    )
    move = st.tuples(pair, st.integers(0, PARTS - 1), st.sampled_from([FOLD, REPLACE]))
    found = []
    for each in draw(st.lists(st.lists(move, min_size=1, max_size=7), min_size=1, max_size=5)):
        pairs, parts, modes = zip(*each, strict=True)
        src, dst = zip(*pairs, strict=True)
        found.append(moves(src, dst, parts, mode=modes))
    return found


@settings(max_examples=settings.default.max_examples * 4)
@given(
    drawn=steps(),
    per_machine=st.sampled_from([1, 2, 3]),
    overhead_s=st.sampled_from([0.0, 2e-6]),
    elements=st.integers(0, 4000),
)
def test_any_steps_take_what_plain_loops_over_single_messages_make_of_the_model(
    drawn: list[Step], per_machine: int, overhead_s: float, elements: int
) -> None:
    schedule = Schedule(
        kind="allreduce", algorithm="drawn", ranks=RANKS, nodes=RANKS, parts=PARTS, steps=len(drawn), step=drawn.__getitem__
    )  # fmt: skip
    network = Network(
        inside=Link(latency_s=1.1e-6, s_per_byte=1.3e-10), across=Link(latency_s=5.3e-6, s_per_byte=1.7e-9),
        per_machine=per_machine, overhead_s=overhead_s, reduce_s_per_byte=2.9e-10,
    )  # fmt: skip
    loops = Loops(RANKS, network)
    for step in drawn:
        loops.step(step, [4.0 * each for each in np.diff(bounds(elements, PARTS))])
    found = simulate(schedule, elements, 4, network).by_node
    np.testing.assert_allclose(found, loops.now, rtol=1e-9, atol=1e-18)
