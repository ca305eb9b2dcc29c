"""fsspec's own abstract suites over gfs://: copy, get, put, pipe, open."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.tests import abstract

from gfs_sim import GFSFileSystem


class GfsFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path_factory: pytest.TempPathFactory) -> GFSFileSystem:
        return GFSFileSystem(root=tmp_path_factory.mktemp("store"), replication=1)

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return f"/{tmp_path.name}"

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)


class TestGfsCopy(abstract.AbstractCopyTests, GfsFixtures):
    pass


class TestGfsGet(abstract.AbstractGetTests, GfsFixtures):
    pass


class TestGfsPut(abstract.AbstractPutTests, GfsFixtures):
    pass


class TestGfsPipe(abstract.AbstractPipeTests, GfsFixtures):
    pass


class TestGfsOpen(abstract.AbstractOpenTests, GfsFixtures):
    pass
