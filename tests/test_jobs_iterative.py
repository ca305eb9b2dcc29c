"""pagerank, connected_components, kmeans and matmul against plain Python, numpy and scikit-learn."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapreduce
from jobs.catalog import find_job
from jobs.edges import edge_reader
from jobs.engine import run as run_in_memory
from jobs.generate import generate
from jobs.library import connected_components as components
from jobs.library import kmeans as clusters
from jobs.library import matmul as products
from jobs.library.pagerank import UNITS, Rank, add_alike
from mapreduce import BadJob, JobError

Edges = list[tuple[Any, Any]]
LINKS = "1 2\n1 3\n# a comment\n2 3\n\n3 1\n4 3\n3\t5 0.7\n6 6\n5 4\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MR_HOME", str(tmp_path / "home"))


@pytest.fixture
def run_job(tmp_path: Path) -> Callable[..., mapreduce.RunResult]:
    """Return a function that runs a job of the library and has the records in its result."""

    def run_it(
        name: str, *inputs: Path, workers: int = 0, split_bytes: int = 1 << 20, **parameters: Any
    ) -> mapreduce.RunResult:
        options = mapreduce.Options(workers=workers, split_bytes=split_bytes, store=str(tmp_path / "store"))
        return mapreduce.run(find_job(name), *map(str, inputs), parameters=parameters, options=options)

    return run_it


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def records_of(result: mapreduce.RunResult) -> list[Any]:
    assert result.records is not None
    return result.records


def cut_anywhere(batch: pa.RecordBatch, places: Iterable[int]) -> Iterator[pa.RecordBatch]:
    edges = [0, *sorted({p % (batch.num_rows + 1) for p in places} - {0, batch.num_rows}), batch.num_rows]
    for start, stop in pairwise(edges):
        yield batch.slice(start, stop - start)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


ENTRIES = "".join(f"{i} {j} {(i * 7 + j) % 5 / 3!r}\n" for i in range(12) for j in range(12))
COORDINATES = "".join(f"{i % 7} {i * 37 % 11 / 7} {i % 3 / 3}\n" for i in range(300))


@pytest.mark.parametrize(
    ("name", "text", "parameters"),
    [
        ("pagerank", LINKS, {"rounds": 3, "partitions": 2}),
        ("pagerank", LINKS, {"tolerance": 0.1, "partitions": 3, "names": "text"}),
        ("connected_components", LINKS, {"partitions": 3}),
        ("kmeans", COORDINATES, {"k": 4, "rounds": 3}),
        ("kmeans", COORDINATES, {"k": 4, "tolerance": 0.01, "assign": True}),
        ("matmul", ENTRIES, {"block": 5, "partitions": 3}),
    ],
    ids=["pagerank", "pagerank-until", "connected_components", "kmeans", "kmeans-until", "matmul"],
)
def test_both_engines_and_a_second_run_write_the_same_files(
    tmp_path: Path, name: str, text: str, parameters: dict[str, Any]
) -> None:
    options = mapreduce.Options(workers=0, store=str(tmp_path / "store"), split_bytes=800)
    found = find_job(name)
    inputs = [str(write(tmp_path / f"{given}.txt", text)) for given in found.input_names]
    outputs = []
    for number, run in enumerate((mapreduce.run, mapreduce.run, run_in_memory)):
        folder = tmp_path / str(number)
        run(found, *inputs, output=str(folder), parameters=parameters, options=options)
        outputs.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert outputs[0] == outputs[1] == outputs[2]
    assert sum(len(content) for content in outputs[0].values()) > 0


# -- edges ------------------------------------------------------------------------------------------


def test_edges_are_the_first_two_fields_of_lines_of_any_bytes() -> None:
    lines = [b"a  b", b"\tc\td  9 9\r", b"", b"  ", b"# x y", b"alone", b"\xff\xfe \xc3\xa9", None]
    counters = {"lines that are no edge": 0}
    source, target = edge_reader(pa.binary())(pa.array([b"x", *lines], pa.binary())[1:], counters)
    assert source.to_pylist() == [b"a", b"c", b"\xff\xfe"]
    assert target.to_pylist() == [b"b", b"d", b"\xc3\xa9"]
    assert counters["lines that are no edge"] == 1


def test_a_name_that_is_no_integer_among_integers_is_named(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "1 2\n2 x7\n")
    with pytest.raises(JobError, match=r"node 'x7' is no integer .* names=text"):
        run_job("pagerank", path, rounds=1)
    assert {
        node for node, _ in records_of(run_job("pagerank", path, names="text", rounds=1, partitions=1))
    } == {b"1", b"2", b"x7"}


# -- pagerank ---------------------------------------------------------------------------------------


def power_iteration(edges: Edges, rounds: int, tolerance: float = -1.0) -> tuple[dict[Any, float], int]:
    """The textbook's way: a dense matrix."""
    nodes = sorted({node for edge in edges for node in edge})
    at = {node: i for i, node in enumerate(nodes)}
    n = len(nodes)
    links = np.zeros((n, n))
    for source, target in edges:
        links[at[target], at[source]] += 1
    degrees = links.sum(axis=0)
    links = np.where(degrees > 0, links / np.maximum(degrees, 1), 1 / n)
    ranks = np.full(n, 1 / n)
    done = 0
    while done < rounds:
        done += 1
        old, ranks = ranks, 0.15 / n + 0.85 * links @ ranks
        if np.abs(ranks - old).sum() < tolerance:
            break
    return dict(zip(nodes, ranks.tolist(), strict=True)), done


def edges_of(text: str) -> Edges:
    fields = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [(int(a), int(b)) for a, b, *_ in fields]


@pytest.mark.parametrize("rounds", [1, 2, 8])
def test_ranks_are_those_of_a_power_iteration(run_job: Any, tmp_path: Path, rounds: int) -> None:
    found = dict(
        records_of(run_job("pagerank", write(tmp_path / "in.txt", LINKS), rounds=rounds, partitions=1))
    )
    expected, _ = power_iteration(edges_of(LINKS), rounds)
    assert found == pytest.approx(expected, abs=1e-14)
    assert sum(found.values()) == pytest.approx(1, abs=1e-14)


def test_rounds_end_when_the_ranks_move_by_less_than_the_tolerance(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", LINKS)
    found = run_job("pagerank", path, rounds=100, tolerance=3e-2, partitions=1)
    expected, rounds = power_iteration(edges_of(LINKS), 100, 3e-2)
    assert 5 < rounds < 20
    assert [stage.stage for stage in found.stages].count("spread") == rounds
    assert dict(records_of(found)) == pytest.approx(expected, abs=1e-14)


def test_nodes_have_the_same_ranks_whatever_they_are_called(run_job: Any, tmp_path: Path) -> None:
    numbers = dict(records_of(run_job("pagerank", write(tmp_path / "n.txt", LINKS), rounds=4, partitions=1)))
    words = "".join(f"page-number-{a}\tpage-number-{b}\n" for a, b in edges_of(LINKS))
    found = dict(records_of(run_job("pagerank", write(tmp_path / "w.txt", words), rounds=4, partitions=2)))
    assert found == {f"page-number-{node}".encode(): rank for node, rank in numbers.items()}


def test_ranks_of_a_larger_graph_are_the_same_bytes_however_it_is_run(run_job: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    generate("graph", str(path), size_bytes=40_000, seed=5, nodes=500)
    runs = [
        sorted(records_of(run_job("pagerank", path, rounds=3, **how)))
        for how in (
            {"partitions": 1},
            {"partitions": 2, "split_bytes": 3_000},
            {"partitions": 5, "split_bytes": 10_000, "workers": 2},
        )
    ]
    assert runs[0] == runs[1] == runs[2]
    expected, _ = power_iteration(edges_of(path.read_text()), 3)
    assert dict(runs[0]) == pytest.approx(expected, abs=1e-12)


@given(data=st.data())
def test_a_node_passes_its_rank_on_alike_wherever_the_stream_is_cut(data: st.DataObject) -> None:
    degrees = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    rows: list[tuple[int, list[int] | None, int]] = []
    for node, degree in enumerate(degrees):
        cut = data.draw(st.integers(0, degree))  # its links may be in two rows
        links = [part for part in (list(range(cut)), list(range(cut, degree))) if part]
        rows += [(node, None, node * 10**15), *((node, part, 0) for part in links)]
    kinds = [pa.int64(), pa.list_(pa.int64()), pa.int64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=["node", "links", "number"])
    side = {"totals": pa.table({"nodes": [len(degrees)], "number": [10**15]})}
    spread = Rank(damping=0.85).spread
    whole = sums_by_node(rows_of(spread(iter([batch]), side=side)))
    places = data.draw(st.lists(st.integers(0, 100), max_size=6))
    assert sums_by_node(rows_of(spread(cut_anywhere(batch, places), side=side))) == whole
    assert whole.keys() >= set(range(len(degrees)))
    linked = [
        number
        for degree, (_, _, number) in zip(degrees, (r for r in rows if r[1] is None), strict=True)
        if degree
    ]
    fresh = (0.15 * UNITS + 0.85 * (UNITS - 10**15)) / len(degrees)
    passed_on = sum(fresh + 0.85 * number for number in linked)
    assert sum(whole.values()) == pytest.approx(passed_on, abs=2**-45 * UNITS)


def sums_by_node(rows: list[tuple[Any, ...]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for node, links, number in rows:
        assert links is None
        found[node] += number
    return found


@given(names=st.lists(st.integers(-60, 60), min_size=1, max_size=20), far=st.booleans())
def test_adding_alike_nodes_keeps_every_sum(names: list[int], far: bool) -> None:
    names = [name * 10**12 if far else name for name in names]
    numbers = np.arange(len(names)) * 10**14
    nodes, sums = add_alike(pa.array(names), numbers)
    found = sums_by_node([(n, None, s) for n, s in zip(nodes.to_pylist(), sums.tolist(), strict=True)])
    expected: Counter[int] = Counter()
    for name, number in zip(names, numbers.tolist(), strict=True):
        expected[name] += number
    assert found == expected
    assert found.keys() == expected.keys()


# -- connected components ---------------------------------------------------------------------------


def union_find(edges: Edges) -> dict[Any, Any]:
    parent: dict[Any, Any] = {}

    def root(node: Any) -> Any:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for a, b in edges:
        a, b = sorted((root(a), root(b)))
        parent[b] = a
    return {node: root(node) for node in parent}


@given(edges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_stars_in_turn_join_what_is_connected(edges: Edges) -> None:
    """The two steps alone, on one partition, each with its rows in an order that Python sorted."""
    graph = edges
    for _ in range(20):
        large = star(components.large_star, [(b, a) for a, b in graph] + graph)
        small = star(components.small_star, [(max(a, b), min(a, b)) for a, b, _ in large])
        graph = [(a, b) for a, b, _ in small]
        if not any(moved for _, _, moved in large + small):
            break
    else:
        pytest.fail("the stars still change after 20 rounds")
    assert dict(graph) | {b: b for _, b in graph} == union_find(edges)


def star(step: Callable[..., Any], edges: Edges) -> list[tuple[Any, ...]]:
    edges = sorted(edges)
    columns = [pa.array([edge[at] for edge in edges], pa.int64()) for at in range(2)]
    batch = pa.RecordBatch.from_arrays(columns, names=["node", "other"])
    whole = sorted(rows_of(step(iter([batch] if edges else []))))
    for size in (1, 3):
        pieces = (batch.slice(at, size) for at in range(0, len(edges), size))
        assert sorted(rows_of(step(pieces))) == whole
    return whole


@pytest.mark.parametrize(("names", "partitions"), [("integer", 1), ("text", 5)])
def test_components_are_those_of_union_find(
    run_job: Any, tmp_path: Path, names: str, partitions: int
) -> None:
    dice = random.Random(3)
    edges = [(dice.randrange(300), dice.randrange(300)) for _ in range(170)]
    edges += [(1000 + i, 1001 + i) for i in range(60)] + [(9999, 9999)]
    dice.shuffle(edges)
    path = write(tmp_path / "in.txt", "".join(f"{a} {b}\n" for a, b in edges))
    if names == "text":
        edges = [(str(a).encode(), str(b).encode()) for a, b in edges]
    found = run_job("connected_components", path, names=names, partitions=partitions, split_bytes=500)
    records = records_of(found)
    assert dict(records) == union_find(edges)
    assert len(records) == len(dict(records))


def test_a_long_path_takes_few_rounds(run_job: Any, tmp_path: Path) -> None:
    order = list(range(512))
    random.Random(1).shuffle(order)
    path = write(tmp_path / "in.txt", "".join(f"{a} {b}\n" for a, b in pairwise(order)))
    found = run_job("connected_components", path, partitions=2)
    assert dict(records_of(found)) == dict.fromkeys(range(512), 0)
    assert [stage.stage for stage in found.stages].count("large star") <= 12


def test_after_few_rounds_labels_are_nodes_of_the_component(run_job: Any, tmp_path: Path) -> None:
    edges = [(i, i + 1) for i in range(100, 200)]
    path = write(tmp_path / "in.txt", "".join(f"{a} {b}\n" for a, b in edges))
    found = run_job("connected_components", path, rounds=1)
    assert [stage.stage for stage in found.stages].count("large star") == 1
    labels = dict(records_of(found))
    assert labels.keys() == set(range(100, 201))
    assert all(100 <= label <= node for node, label in labels.items())
    assert len(set(labels.values())) > 1


# -- kmeans -----------------------------------------------------------------------------------------


@pytest.fixture
def blobs() -> Any:
    dice = np.random.default_rng(7)
    middles = dice.normal(size=(5, 3)) * 12
    points = np.concatenate([middle + dice.normal(size=(120, 3)) for middle in middles])
    return dice.permutation(points) * [1, 1000, 1e-3]


def write_csv(path: Path, points: Any) -> Path:
    rows = "".join(",".join(map(repr, row)) + ",1\n" for row in points.tolist())
    return write(path, "a,b,c,label\n" + rows)


def lloyd(points: Any, places: Any) -> Any:
    nearest = ((points[:, None] - places) ** 2).sum(axis=2).argmin(axis=1)
    return np.array([points[nearest == i].mean(axis=0) for i in range(len(places))])


def test_a_round_is_one_step_of_lloyds_algorithm(run_job: Any, tmp_path: Path, blobs: Any) -> None:
    path = write_csv(tmp_path / "in.csv", blobs)
    centres = [
        np.array([row[2:] for row in records_of(run_job("kmeans", path, k=7, rounds=rounds, seed=3))])
        for rounds in (1, 2, 3, 4)
    ]
    assert not np.array_equal(centres[0], centres[1])
    for before, after in pairwise(centres):
        np.testing.assert_allclose(after, lloyd(blobs, before), rtol=1e-12, atol=1e-15)


def test_centres_are_the_same_bytes_from_csv_parquet_and_text_in_any_order(
    run_job: Any, tmp_path: Path, blobs: Any
) -> None:
    csv = write_csv(tmp_path / "in.csv", blobs)
    table = pa.table({name: blobs[::-1, at] for at, name in enumerate("abc")})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=100)
    text = write(tmp_path / "in.txt", "\n\n".join(" ".join(map(repr, row)) for row in blobs.tolist()))
    expected = records_of(run_job("kmeans", csv, k=5, rounds=5))
    assert records_of(run_job("kmeans", tmp_path / "in.parquet", k=5, rounds=5, split_bytes=2000)) == expected
    assert records_of(run_job("kmeans", text, k=5, rounds=5, split_bytes=2000, workers=2)) == expected
    assert sum(row[1] for row in expected) == len(blobs)


def test_a_tolerance_ends_the_rounds_at_scikit_learns_optimum(
    run_job: Any, tmp_path: Path, blobs: Any
) -> None:
    from sklearn.cluster import KMeans

    path = write_csv(tmp_path / "in.csv", blobs)
    found = run_job("kmeans", path, k=5, rounds=50, tolerance=0.0, assign=True)
    assert [stage.stage for stage in found.stages].count("round") < 50
    rows = records_of(found)
    np.testing.assert_array_equal(np.array([row[:3] for row in rows]), blobs)
    labels = np.array([row[4] for row in rows])
    inertia = sum(float(((p - p.mean(axis=0)) ** 2).sum()) for p in (blobs[labels == i] for i in range(5)))
    best = KMeans(n_clusters=5, n_init=5, random_state=0, tol=0).fit(blobs)
    assert inertia == pytest.approx(best.inertia_, rel=1e-9)


def test_text_points_are_assigned_line_by_line(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "0, 0\n10,10\n\n 0.5 0\n9 10\n")
    rows = records_of(run_job("kmeans", path, k=2, rounds=3, assign=True))
    assert [line for line, _ in rows] == [b"0, 0", b"10,10", b" 0.5 0", b"9 10"]
    labels = [cluster for _, cluster in rows]
    assert labels[0] == labels[2] != labels[1] == labels[3]


def test_points_without_a_coordinate_are_counted_and_left_out(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", "x,y,name\n1,2,a\n,5,b\n3,2,c\nnan,1,d\n")
    found = run_job("kmeans", path, k=1, rounds=1)
    assert records_of(found) == [(0, 2, 2.0, 2.0)]
    assert found.counters["points without all coordinates"] == 2


def test_a_centre_without_points_stays_where_it_is() -> None:
    centres = clusters.Centres(places=np.array([[0.0], [50.0], [100.0]]), largest=np.array([100.0]))
    counts, high, low = centres.add_up(np.array([[1.0, 2.0, 99.0]]))
    sums = [[(h << clusters.LIMB_BITS) + r for h, r in zip(high.tolist(), low.tolist(), strict=True)]]
    assert counts.tolist() == [2, 0, 1]
    assert centres.move(counts, sums).tolist() == [[1.5], [50.0], [99.0]]


def test_sums_are_exact_whatever_their_order_and_however_large_their_parts() -> None:
    dice = np.random.default_rng(0)
    points = dice.normal(size=(2, 30_000)) * 10.0 ** dice.integers(-12, 12, (2, 30_000))
    largest = np.abs(points).max(axis=1)
    centres = clusters.Centres(places=np.zeros((1, 2)), largest=largest)
    found = centres.add_up(points)
    units = [Fraction(2) ** (math.frexp(most)[1] - 52) for most in largest]
    for at, unit in enumerate(units):
        expected = sum(round(Fraction(x) / unit) for x in points[at].tolist())
        assert (int(found[1 + at, 0]) << 26) + int(found[3 + at, 0]) == expected
    assert found.tolist() == centres.add_up(dice.permutation(points, axis=1)).tolist()


@given(data=st.data())
def test_the_nearest_centre_is_the_first_of_those_at_the_least_distance(data: st.DataObject) -> None:
    """Small integers have exact distances and many ties; a matrix product of shifted ones does not see these."""
    number = st.integers(-3, 3)
    places = np.array(data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=6)), np.float64)
    points = np.array(data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=20)), np.float64)
    expected = ((points[:, None] - places) ** 2).sum(axis=2).argmin(axis=1)
    shift = data.draw(st.sampled_from([0.0, 2.0**26, 1 / 3]))
    moved = np.ascontiguousarray((points + shift).T)
    centres = clusters.Centres(places=places + shift, largest=np.abs(moved).max(axis=1))
    exact = (((points + shift)[:, None] - (places + shift)) ** 2).sum(axis=2).argmin(axis=1)
    assert centres.nearest(moved).tolist() == exact.tolist()
    if shift != 1 / 3:
        assert exact.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        ("x,y\n1,2\n1,2\n3,4\n", {"k": 3}, "only 2 different points"),
        ("x,y\n1,2\n", {"columns": "x,z"}, "no column 'z'; the columns are: x, y"),
        ("x,y\n1,a\n", {"columns": "y"}, "column 'y' is string; coordinates are numbers"),
        ("x,cluster\n1,1\n", {}, "a column is called 'cluster'"),
        ("x,y\n1,2\n", {"rounds": 0}, "rounds must be >= 1, got 0"),
    ],
)
def test_points_that_cannot_be_clustered_are_refused(
    run_job: Any, tmp_path: Path, text: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        run_job("kmeans", write(tmp_path / "in.csv", text), **parameters)


def test_a_line_with_another_number_of_coordinates_is_shown(run_job: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"has 2 coordinates, but not .*'1 2 3'"):
        run_job("kmeans", write(tmp_path / "in.txt", "1 2\n1 2 3\n"), k=1)
    with pytest.raises(JobError, match=r"a coordinate is no number: .*'x'"):
        run_job("kmeans", write(tmp_path / "in.txt", "1 2\n1 x\n"), k=1)


# -- matmul -----------------------------------------------------------------------------------------


def triples(path: Path, matrix: Any, seed: int = 0) -> Path:
    places = list(zip(*np.nonzero(matrix), strict=True))
    random.Random(seed).shuffle(places)
    return write(path, "".join(f"{i} {j} {matrix[i, j].item()!r}\n" for i, j in places))


def dense(rows: list[Any], shape: tuple[int, int]) -> Any:
    found = np.zeros(shape)
    for row, col, value in rows:
        assert found[row, col] == 0
        assert value != 0
        found[row, col] = value
    return found


def sparse_matrix(dice: Any, shape: tuple[int, int], density: float) -> Any:
    return dice.normal(size=shape) * (dice.random(shape) < density)


@pytest.mark.parametrize("density", [1.0, 0.04])
@pytest.mark.parametrize("block", [2, 256])
def test_products_are_numpys(run_job: Any, tmp_path: Path, density: float, block: int) -> None:
    dice = np.random.default_rng(1)
    a, b = sparse_matrix(dice, (40, 27), density), sparse_matrix(dice, (27, 33), density)
    paths = triples(tmp_path / "a.txt", a), triples(tmp_path / "b.txt", b)
    found = dense(records_of(run_job("matmul", *paths, block=block, partitions=2)), (40, 33))
    np.testing.assert_allclose(found, a @ b, rtol=1e-12, atol=1e-13)


def test_products_of_integers_are_exact_and_zeros_are_left_out(run_job: Any, tmp_path: Path) -> None:
    a, b = np.array([[1, 2], [3, -6], [0, 0]]), np.array([[2, 4, 0], [1, 1, 0]])
    for name, matrix in (("a", a), ("b", b)):
        rows, cols = np.nonzero(matrix)
        columns = {"row": rows, "col": cols, "value": matrix[rows, cols]}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    found = records_of(run_job("matmul", *paths, block=1, partitions=1))
    assert found == [(0, 0, 4.0), (0, 1, 6.0), (1, 1, 6.0)]


def test_a_product_is_the_same_bytes_however_it_is_run(run_job: Any, tmp_path: Path) -> None:
    dice = np.random.default_rng(2)
    a, b = sparse_matrix(dice, (50, 60), 0.5), sparse_matrix(dice, (60, 20), 0.5)
    runs = []
    for how in ({"partitions": 1}, {"partitions": 3, "split_bytes": 3000}, {"partitions": 5, "workers": 2}):
        seed = len(runs)
        paths = triples(tmp_path / "a.txt", a, seed), triples(tmp_path / "b.txt", b, seed)
        runs.append(sorted(records_of(run_job("matmul", *paths, block=16, **how))))
    assert runs[0] == runs[1] == runs[2]


@given(seed=st.integers(0, 1 << 30), density=st.sampled_from([0.05, 0.3, 1.0]))
def test_dense_and_sparse_blocks_give_the_same_bits(seed: int, density: float) -> None:
    dice = np.random.default_rng(seed)
    blocks = []
    for shape in ((9, 12), (12, 7)):
        matrix = sparse_matrix(dice, shape, density) * 10.0 ** dice.integers(-8, 8, shape)
        rows, cols = np.nonzero(matrix)
        blocks.append(products.Block.of(rows + 1000, cols + 1000, matrix[rows, cols]))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for product_cost, sparse_products, tile in ((0, 1, 1), (0, 50, 1), (1 << 40, 1, 3), (1 << 40, 1, 50)):
            patch.setattr(products, "PRODUCT_COST", product_cost)
            patch.setattr(products, "SPARSE_PRODUCTS", sparse_products)
            made = (
                list(products.multiply(blocks[0], blocks[1], tile))
                if all(len(x.rows) for x in blocks)
                else []
            )
            entries = [(m.rows.tolist(), m.cols.tolist(), m.values.tolist()) for m in made]
            found.append(sorted((r, c, v.hex()) for m in entries for r, c, v in zip(*m, strict=True)))
    assert found[0] == found[1] == found[2] == found[3]


def test_an_infinite_entry_does_not_meet_entries_that_are_not_there(run_job: Any, tmp_path: Path) -> None:
    a = write(tmp_path / "a.txt", "0 0 inf\n0 1 1\n1 0 1\n1 1 1\n")
    b = write(tmp_path / "b.txt", "1,0,2\n0,1,3\n1,1,3\n")
    found = records_of(run_job("matmul", a, b, partitions=1))
    assert found == [(0, 0, 2.0), (0, 1, float("inf")), (1, 0, 2.0), (1, 1, 6.0)]


def test_entries_given_twice_are_added_up(run_job: Any, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.txt", "0 0 1\n0 0 2\n"), write(tmp_path / "b.txt", "0 5 10\n0 5 1\n")
    assert records_of(run_job("matmul", a, b)) == [(0, 5, 33.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2\n", "must hold row, column and value, got '1 2'"),
        ("1.5 2 3\n", "rows and columns are integers"),
    ],
)
def test_lines_that_are_no_entry_are_refused(run_job: Any, tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "in.txt", text)
    with pytest.raises(JobError, match=message):
        run_job("matmul", path, path)


def test_parameters_out_of_range_are_refused(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "1 2\n")
    for name, parameters in (
        ("pagerank", {"rounds": 0}),
        ("pagerank", {"damping": 1.0}),
        ("pagerank", {"names": "words"}),
        ("connected_components", {"rounds": 0}),
        ("kmeans", {"k": 0}),
    ):
        with pytest.raises(BadJob, match=f"job '{name}': {next(iter(parameters))} must be"):
            run_job(name, path, **parameters)
