"""pandas is imported when a job uses it, and not before; what pyarrow does with it stays the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

# RecordBuffer and the text writer make arrays and scalars in our own code, as every run does.
BEGIN = """
import sys
from mapreduce.pandas_import import put_off_pandas
put_off_pandas()
import pyarrow as pa
from mapreduce.records import to_batch
to_batch([("a", 1)])
assert "pandas" not in sys.modules
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", BEGIN + code], check=True)


def test_our_own_arrays_do_not_import_pandas() -> None:
    pytest.importorskip("pandas")
    run("pa.array([1]); assert 'pandas' in sys.modules  # from here it would be")


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
