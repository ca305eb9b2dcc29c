"""Input, intermediates and output on filesystems other than the local disk: a real S3 protocol, and ``gfs://``."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import mapreduce
from mapreduce import Options, OutputExists, Stage, job, take, total

TEXT = "the ant and the bee\nthe cow\n\nant\n" * 50


def words(offset, line):
    for word in line.split():
        yield word, 1


def swap(word, count):
    yield -count, word


@job
def top(text):
    counts = Stage(map=words, combine=total, reduce=total, partitions=3)(text)
    return Stage(map=swap, reduce_stream=take(3), partitions=1)(counts)


EXPECTED = sorted((-n, w) for w, n in collections.Counter(TEXT.split()).items())[:3]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict]:
    """Options for a filesystem that speaks S3 to a server in this process."""
    server_module = pytest.importorskip("moto.server", reason="moto (extra: test) is not installed")
    pytest.importorskip("s3fs", reason="s3fs (extra: s3) is not installed")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "x", "secret": "x"}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield options
    server.stop()


def check(base: str, options: dict) -> None:
    filesystem = fsspec.filesystem(base.split(":")[0], **options)
    filesystem.pipe_file(f"{base}/in/a.txt", TEXT.encode())
    settings = Options(store=f"{base}/store", store_options=options, storage_options=options, split_bytes=300)
    mapreduce.run(top, f"{base}/in", output=f"{base}/out", options=settings)
    found = filesystem.cat_file(f"{base}/out/part-00000.txt").decode().splitlines()
    assert [(int(line.split("\t")[0]), line.split("\t")[1]) for line in found] == EXPECTED
    names = {path.rsplit("/", 1)[-1] for path in filesystem.find(f"{base}/out")}
    assert names == {"part-00000.txt", "_SUCCESS"}
    assert filesystem.find(f"{base}/store") == []
    with pytest.raises(OutputExists, match="exists already"):
        mapreduce.run(top, f"{base}/in", output=f"{base}/out", options=settings)


def test_a_chain_runs_wholly_on_s3(s3: dict) -> None:
    check("s3://bucket/work", s3)


def test_a_chain_runs_wholly_on_the_chunk_store(tmp_path: Path) -> None:
    check("gfs://work", {"root": str(tmp_path / "root")})


def test_output_in_the_chunk_store_is_replaced_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    options = {"root": str(tmp_path / "root")}
    filesystem = fsspec.filesystem("gfs", **options)
    filesystem.pipe_file("/in.txt", TEXT.encode())
    settings = Options(storage_options=options, overwrite=True)
    mapreduce.run(top, "gfs://in.txt", output="gfs://out", options=settings)
    before = filesystem.cat_file("/out/part-00000.txt")

    def fails(offset, line):
        raise RuntimeError("no")

    with pytest.raises(mapreduce.JobError):
        mapreduce.run(lambda t: Stage(map=fails)(t), "gfs://in.txt", output="gfs://out", options=settings)
    assert filesystem.cat_file("/out/part-00000.txt") == before
    mapreduce.run(top, "gfs://in.txt", output="gfs://out", options=settings)
    assert filesystem.cat_file("/out/part-00000.txt") == before
    assert [p for p in filesystem.find("/") if "out" in p and "part" not in p] == ["/out/_SUCCESS"]
