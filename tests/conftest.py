"""Every test has a home folder of its own, and Hypothesis is steady enough for a busy machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady",
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Know the markers of pyarrow's own tests, which test_gfs_pyarrow_suite runs over gfs://."""
    for marker in ("azure", "gcs", "gzip", "hdfs", "numpy", "pandas", "processes", "s3", "threading"):
        config.addinivalue_line("markers", f"{marker}: from pyarrow's test suite")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh ``MR_HOME``, so that no test sees another's store or runs."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MR_HOME", str(folder))
    return folder
