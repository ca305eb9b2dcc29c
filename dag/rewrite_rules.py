"""Rewrites that look at one operator and its inputs: sharing, flattens, combiners, trees.

Each takes a logical graph and returns another that gives the same values, with what it did and what it declined.
"""

from __future__ import annotations

from dataclasses import replace

from .graph import Graph, Node, Op, Part
from .logical import (
    Combine,
    Flatten,
    Gather,
    Group,
    Map,
    Write,
    kept_nodes,
    output_nodes,
    partitions_of,
    takes_of,
)
from .rewrite_base import Names, Rewritten, listed, moved, rebuild, with_inputs


def share(graph: Graph) -> Rewritten:
    """Compute once what occurs several times: equal operators (one object, or equal keys) over the same inputs."""
    first: dict[object, Node] = {}
    same_as: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = tuple(moved(given, same_as) for given in node.inputs)
        what = node.op if node.op.key is None else (type(node.op), node.op.key)
        same_as[node] = first.setdefault((what, inputs), node)
    kept = {same_as[node] for node in graph.nodes if node.keep}
    became: dict[Node, Node] = {}
    applied = []
    for node in graph.nodes:
        if same_as[node] is node:
            made = with_inputs(node, (moved(given, became) for given in node.inputs))
            became[node] = made if made.keep or node not in kept else replace(made, keep=True)
        else:
            became[node] = became[same_as[node]]
            applied.append(f"{node.name} is the same as {same_as[node].name}: it is computed once")
    outputs = tuple(became[node] for node in graph.outputs)
    return Rewritten(graph=Graph(outputs), applied=tuple(applied), became=became)


def sink_flattens(graph: Graph) -> Rewritten:
    """Apply an operator to the inputs of a Flatten instead of to its partitions, so that fusion sees who made them."""
    names, known = Names(node.name for node in graph.nodes), dict[Node, int]()
    applied: list[str] = []
    refused: list[str] = []

    def change(node: Node) -> Node:
        op = node.op
        behind = [
            at
            for at, given in enumerate(node.inputs)
            if isinstance(given, Node) and isinstance(given.op, Flatten)
        ]
        if not behind:
            return node
        if isinstance(op, Flatten | Group):
            return splice(node, op, behind)
        if not isinstance(op, Map | Combine | Write):
            return node
        own = [at for at, take in enumerate(takes_of(node)) if take == "own"]
        flats = [node.inputs[at] for at in own if at in behind]
        if not flats:
            return node  # it takes the flattened partitions whole
        cuts = {tuple(cut(node.inputs[at])) for at in own}
        if any(at not in behind for at in own) or len(cuts) > 1:
            refused.append(
                f"{node.name} stays behind {_name(flats[0])}: not all of its inputs are flattened in the same way"
            )
            return node
        if any(kept(node.inputs[at]) for at in own):
            refused.append(f"{node.name} stays behind {_name(flats[0])}: that is kept")
            return node
        return sink(node, op, own, list(cuts.pop()))

    def kept(given: Node | Part) -> bool:
        return isinstance(given, Node) and given.keep

    def cut(given: Node | Part) -> list[int]:
        return [partitions_of(source, known) for source in given.sources()] if isinstance(given, Node) else []

    def splice(node: Node, op: Flatten | Group, behind: list[int]) -> Node:
        if isinstance(op, Group) and op.placed:
            return node
        inputs: list[Node | Part] = []
        splits, index_from = [], []
        sunk: list[str] = []
        for at, given in enumerate(node.inputs):
            split, first = op.split_of(at) if isinstance(op, Group) else (None, 0)
            if at not in behind or kept(given):
                if at in behind:
                    refused.append(f"{node.name} stays behind {_name(given)}: that is kept")
                inputs.append(given)
                splits.append(split)
                index_from.append(first)
                continue
            assert isinstance(given, Node)
            sunk.append(given.name)
            for source, count in zip(given.inputs, cut(given), strict=True):
                inputs.append(source)
                splits.append(split)
                index_from.append(first)
                first += count
        if not sunk:
            return node
        applied.append(f"{node.name} takes the inputs of {listed(sunk)} one by one")
        if isinstance(op, Flatten):
            return replace(node, inputs=tuple(inputs))
        alike = len(op.splits) == 1
        return replace(
            node,
            inputs=tuple(inputs),
            op=replace(
                op,
                splits=op.splits if alike else tuple(split for split in splits if split is not None),
                index_from=tuple(index_from) if any(index_from) else (),
            ),
        )

    def sink(node: Node, op: Map | Combine | Write, own: list[int], counts: list[int]) -> Node:
        made: list[Node] = []
        first, every = 0, max(sum(counts), 1)
        for number, count in enumerate(counts):
            inputs = list(node.inputs)
            for at in own:
                flat = inputs[at]
                assert isinstance(flat, Node)
                inputs[at] = flat.inputs[number]
            made.append(
                replace(
                    node,
                    name=names.fresh(f"{node.name}.{number}"),
                    op=_counting_from(op, first),
                    inputs=tuple(inputs),
                    work_s=node.work_s * count / every,
                    size_bytes=node.size_bytes * count // every,
                )
            )
            first += count
        flats = listed(dict.fromkeys(_name(node.inputs[at]) for at in own))
        applied.append(f"{node.name} runs in front of {flats}, on each of {len(counts)} inputs")
        return Node(name=node.name, op=Flatten(), inputs=tuple(made), size_bytes=node.size_bytes)

    done, became = rebuild(graph, change)
    return Rewritten(graph=done, applied=tuple(applied), refused=tuple(refused), became=became)


def lift_combiners(graph: Graph) -> Rewritten:
    """Fold each partition in front of the split as well as behind the merge, where folding parts first changes no byte."""
    applied: list[str] = []
    refused: list[str] = []
    single = _used_once(graph)
    lifted: dict[Node, Combine] = {}
    for node in graph.nodes:
        source = node.inputs[0] if isinstance(node.op, Combine) else None
        if (
            not isinstance(source, Node)
            or not isinstance(source.op, Group)
            or not isinstance(node.op, Combine)
        ):
            continue
        if source.op.local is not None:
            continue
        why = _no_lift(node.op, source, source in single)
        if why:
            refused.append(f"{node.name} is not lifted over {source.name}: {why}")
            continue
        lifted[source] = replace(node.op, key=None, function=node.op.loose or node.op.function)
        applied.append(
            f"{node.name} folds each partition in front of {source.name} too, so that less is moved"
        )

    became: dict[Node, Node] = {}
    for node in graph.nodes:
        made = with_inputs(node, (moved(given, became) for given in node.inputs))
        if node in lifted and isinstance(made.op, Group):
            made = replace(made, op=replace(made.op, key=None, local=lifted[node]))
        became[node] = made
    done = Graph(tuple(became[node] for node in graph.outputs))
    became = {
        node: now for node, now in became.items() if node not in lifted
    }  # the rows of those are others now
    return Rewritten(graph=done, applied=tuple(applied), refused=tuple(refused), became=became)


def _no_lift(op: Combine, source: Node, alone: bool) -> str | None:
    assert isinstance(source.op, Group)
    if not op.exact:
        return "it is not exact, so folding parts first could change its bytes"
    if len(source.op.splits) > 1:
        return "that group joins inputs of different kinds"
    if len(source.op.placed) == len(source.inputs):
        return "nothing moves there"
    if not alone:
        return "others need that group's rows unfolded"
    return None


def reduce_in_trees(graph: Graph) -> Rewritten:
    """Give each fold of a tree over partition numbers a task of its own, so that folds run side by side."""
    names, known = Names(node.name for node in graph.nodes), dict[Node, int]()
    applied: list[str] = []
    refused: list[str] = []

    def change(node: Node) -> Node:
        op = node.op
        if not isinstance(op, Map) or op.whole != (0,) or len(node.inputs) != 1:
            return node
        given = node.inputs[0]
        count = every = partitions_of(given.node if isinstance(given, Part) else given, known)
        if count <= op.fan_in:
            return node
        if not op.associative:
            refused.append(
                f"{node.name} takes {count} partitions at once: its function is not said to be associative"
            )
            return node
        levels: list[int] = []
        while count > op.fan_in:
            count = -(-count // op.fan_in)
            levels.append(count)
            given = Node(
                name=names.fresh(f"{node.name}.level{len(levels)}"),
                op=Gather(function=op.function, fan_in=op.fan_in, releases_gil=op.releases_gil),
                inputs=(given,),
                work_s=node.work_s * count / every,
                size_bytes=node.size_bytes * count,
            )
        applied.append(
            f"{node.name} folds {every} partitions in a tree of fan-in {op.fan_in}: "
            f"levels of {', '.join(map(str, levels))} and 1 tasks, none with more than {op.fan_in} inputs"
        )
        return replace(node, inputs=(given,))

    done, became = rebuild(graph, change)
    return Rewritten(graph=done, applied=tuple(applied), refused=tuple(refused), became=became)


def _used_once(graph: Graph) -> set[Node]:
    """Return the nodes that one other node needs, and nobody else."""
    others = kept_nodes(graph) | output_nodes(graph)
    return {node for node, users in graph.consumers.items() if len(users) == 1 and node not in others}


def _counting_from(op: Map | Combine | Write, first: int) -> Op:
    """Return ``op`` with indices that go on from ``first``."""
    if first and (isinstance(op, Write) or (isinstance(op, Map) and op.indexed)):
        return replace(op, key=None, index_from=op.index_from + first)
    return op


def _name(given: Node | Part) -> str:
    return given.node.name if isinstance(given, Part) else given.name
