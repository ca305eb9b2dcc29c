"""What people use reads and writes gfs://: pandas, pyarrow datasets, DuckDB, dask."""

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from gfs_sim import GFSFileSystem, Store

TABLE = pa.table({"key": [f"k{n % 7}" for n in range(5000)], "value": list(range(5000))})


@pytest.fixture
def fs(home: Path) -> GFSFileSystem:
    Store.create(chunk_bytes=16 << 10, replication=1)
    return GFSFileSystem()


def test_pandas_reads_and_writes_urls(fs: GFSFileSystem) -> None:
    frame = TABLE.to_pandas()
    frame.to_csv("gfs://t/frame.csv", index=False)
    frame.to_parquet("gfs://t/frame.parquet")
    frame.to_csv("gfs://t/frame.csv.gz", index=False)
    for path in ("gfs://t/frame.csv", "gfs://t/frame.csv.gz"):
        pd.testing.assert_frame_equal(pd.read_csv(path), frame, check_dtype=False)
    assert pd.read_parquet("gfs://t/frame.parquet")["value"].sum() == sum(range(5000))


def test_pandas_that_fails_halfway_publishes_nothing(fs: GFSFileSystem) -> None:
    frame = pd.DataFrame({"a": ["x"] * 50_000 + ["\u20ac"]})
    with pytest.raises(UnicodeEncodeError):
        frame.to_csv("gfs://t/frame.csv", encoding="latin-1")
    assert fs.find("/") == []


def test_pyarrow_datasets_write_and_filter_partitions(fs: GFSFileSystem) -> None:
    arrow = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs))
    ds.write_dataset(TABLE, "/d", format="parquet", partitioning=["key"], filesystem=arrow)
    again = ds.dataset("/d", format="parquet", partitioning=["key"], filesystem=arrow)
    assert again.count_rows() == 5000
    got = again.to_table(filter=ds.field("key") == "k3").column("value").to_pylist()
    assert sorted(got) == [n for n in range(5000) if n % 7 == 3]
    pq.write_table(TABLE, "one.parquet", filesystem=fs)
    assert pq.read_table("one.parquet", filesystem=fs).equals(TABLE)
    url_fs, path = pa.fs.FileSystem.from_uri("fsspec+gfs://one.parquet")
    with url_fs.open_input_file(path) as file:
        assert pq.read_table(file).equals(TABLE)


def test_duckdb_reads_and_writes_through_fsspec(fs: GFSFileSystem) -> None:
    database = duckdb.connect()
    database.register_filesystem(fs)
    for name in ("a", "b"):
        pq.write_table(TABLE, f"p/{name}.parquet", filesystem=fs)
    query = "SELECT COUNT(*), SUM(value) FROM read_parquet('gfs://p/*.parquet')"
    assert database.execute(query).fetchone() == (10_000, 2 * sum(range(5000)))
    database.execute("COPY (SELECT 1 AS x, 'y' AS y) TO 'gfs://out/t.csv' (HEADER)")
    assert fs.cat("out/t.csv") == b"x,y\n1,y\n"


def test_dask_reads_and_writes_in_processes(fs: GFSFileSystem) -> None:
    import dask
    import dask.bag as db

    lines = [f"line {n}" for n in range(2000)]
    written = db.from_sequence(lines, npartitions=4).map(str.upper)
    with dask.config.set(scheduler="threads"):
        written.to_textfiles("gfs://bag/*.txt")
    with dask.config.set(scheduler="processes", num_workers=2):
        read = db.read_text("gfs://bag/*.txt", blocksize=4000).map(str.strip).compute()
    assert sorted(read) == sorted(line.upper() for line in lines)


def fail(line: str) -> str:
    if line == "line 150":
        raise KeyError(line)
    return line


def test_a_dask_task_that_raises_leaves_no_half_file(fs: GFSFileSystem) -> None:
    import dask
    import dask.bag as db

    bag: Any = db.from_sequence([f"line {n}" for n in range(200)], npartitions=2)
    with pytest.raises(KeyError), dask.config.set(scheduler="sync"):
        bag.map(fail).to_textfiles("gfs://bag/*.txt")
    assert "/bag/1.txt" not in fs.find("/")
    assert all(fs.cat(path).count(b"\n") == 99 for path in fs.find("/"))


def test_where_chunks_lie_is_told_for_locality(fs: GFSFileSystem) -> None:
    fs.pipe("f", b"x" * 40_000)
    places = fs.locations("f")
    assert [(place["offset"], place["length"]) for place in places] == [
        (0, 16384),
        (16384, 16384),
        (32768, 7232),
    ]
    names = {server.name for server in fs.store.servers()}
    assert all(len(place["servers"]) == 1 and place["servers"][0] in names for place in places)
