"""pandas is imported when a job uses it, and not before; what pyarrow does with it stays the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# RecordBuffer and the text writer make arrays and scalars in our own code, as every run does.
BEGIN = """
import sys
from mapreduce.pandas_import import put_off_pandas
put_off_pandas()
import pyarrow as pa
put_off_pandas()
from mapreduce.records import to_batch
to_batch([("a", 1)])
assert "pandas" not in sys.modules
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + code], check=True, timeout=60)


def test_our_own_arrays_do_not_import_pandas() -> None:
    pytest.importorskip("pandas")
    run("import pandas; assert pa.lib._pandas_api.have_pandas")


def test_a_function_of_a_job_may_make_the_first_array_of_all() -> None:
    """Pyarrow holds a lock while it imports pandas on behalf of a function that is not ours."""
    pytest.importorskip("pandas")
    lines = [
        "import sys",
        "from mapreduce.pandas_import import put_off_pandas",
        "put_off_pandas()",
        "import pyarrow as pa",
        "assert pa.array([1, None]).null_count == 1",
        "import pandas as pd",
        "assert pa.array(pd.Series([1.0, float('nan')])).null_count == 1",
    ]
    for code in (lines, [*lines[:4], "put_off_pandas()", *lines[4:]]):
        subprocess.run([sys.executable, "-c", "\n".join(code)], check=True, timeout=60)


def test_a_batch_job_of_a_file_makes_arrays_in_its_workers(tmp_path: Path) -> None:
    (tmp_path / "ones.py").write_text(
        "import pyarrow as pa\nfrom mapreduce import Stage, job\n"
        "schema = pa.schema([('line', pa.binary()), ('n', pa.int64())])\n"
        "def ones(batch):\n"
        "    counts = pa.array([1] * batch.num_rows, pa.int64())\n"
        "    return pa.RecordBatch.from_arrays([batch.column('line'), counts], schema=schema)\n"
        "@job\ndef count(text):\n"
        "    return Stage(map_batch=ones, schema=schema, keys=['line'], aggregate={'n': 'sum'})(text)\n"
    )
    (tmp_path / "in.txt").write_text("a\nb\na\n")
    command = [sys.executable, "-c", "from jobs.cli import main; main()", "run", str(tmp_path / "ones.py")]
    for engine in ("mapreduce", "dag"):
        out = tmp_path / engine
        words = [*command, str(tmp_path / "in.txt"), "-o", str(out), "--engine", engine, "--quiet"]
        subprocess.run(words, check=True, timeout=60)
        assert (out / "part-00000.txt").read_text() == "a\t2\nb\t1\n"


def test_to_pandas_finds_pandas() -> None:
    pytest.importorskip("pandas")
    run("assert to_batch([('a', 1), ('b', 2)]).to_pandas().shape[0] == 2")


def test_pyarrow_knows_what_pandas_makes_once_pandas_is_imported() -> None:
    pytest.importorskip("pandas")
    run(
        "import pandas as pd\n"
        "assert pa.array(pd.Series([1.0, float('nan')])).null_count == 1\n"
        "frame = pd.DataFrame({'a': pd.Categorical(['x', 'y', 'x'])})\n"
        "assert pa.types.is_dictionary(pa.RecordBatch.from_pandas(frame).schema.field('a').type)\n"
    )


def test_without_pandas_its_import_fails_as_ever() -> None:
    run(
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        "try:\n    import pandas\nexcept ModuleNotFoundError as error:\n    assert error.name == 'pandas'\n"
        "else:\n    raise SystemExit(1)\n"
    )
