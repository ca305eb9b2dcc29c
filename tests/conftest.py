"""Every test has a home folder of its own, and Hypothesis is steady enough for a busy machine.

``HYPOTHESIS_PROFILE=thorough`` (``make thorough``) looks at twelve times as many examples, others each time.
"""

from __future__ import annotations

import compileall
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs the tests in the background has them ignore Ctrl-C, and so all that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Hundreds of processes that the tests start import the package, compiled once, below.  Files of jobs that tests write are not
# cached beside them: one that is written twice in a second with the same size would be taken from the cache.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False
# Threads that wait for a product of matrices, one for each core, keep other tests from theirs.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_STEADY = settings(
    max_examples=25,
    deadline=None,
    # The same examples each time: a change is at fault where a test fails that did not fail before.
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("steady", _STEADY)
settings.register_profile("thorough", _STEADY, max_examples=300, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def pytest_configure(config: pytest.Config) -> None:
    """Know the markers of pyarrow's own tests, which test_gfs_pyarrow_suite runs over gfs://; compile the package."""
    for marker in ("azure", "gcs", "gzip", "hdfs", "numpy", "pandas", "processes", "s3", "threading"):
        config.addinivalue_line("markers", f"{marker}: from pyarrow's test suite")
    if not hasattr(config, "workerinput"):
        for room in ("gfs_sim", "mapreduce", "dag", "jobs"):
            compileall.compile_dir(Path(__file__).parent.parent / room, quiet=2)


def pytest_collection_finish() -> None:
    """The tests themselves are cached; what they load is not."""
    sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that nobody has, one after the other; numbered here, since pytest looks at all it has made for each."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh ``MR_HOME``, so that no test sees another's store or runs."""
    folder = next(homes)
    folder.mkdir()
    monkeypatch.setenv("MR_HOME", str(folder))
    return folder
