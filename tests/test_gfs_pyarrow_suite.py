"""The functions of pyarrow's own filesystem tests that take a filesystem and a path function, over gfs://."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem
from pyarrow.tests.test_fs import (  # noqa: F401
    allow_append_to_file,
    allow_move_dir,
    fs,
    pathfn,
    test_copy_file,
    test_create_dir,
    test_delete_dir,
    test_delete_dir_contents,
    test_delete_dir_with_explicit_subdir,
    test_delete_file,
    test_get_file_info,
    test_get_file_info_with_selector,
    test_move_directory,
    test_move_file,
    test_normalize_path,
    test_open_append_stream,
    test_open_input_file,
    test_open_input_stream,
    test_open_input_stream_not_found,
    test_open_output_stream,
    test_open_output_stream_metadata,
)

from gfs_sim import GFSFileSystem


@pytest.fixture
def filesystem_config(tmp_path: Path) -> dict[str, Any]:
    store = GFSFileSystem(root=tmp_path / "store", replication=1)
    return {
        "fs": PyFileSystem(FSSpecHandler(store)),
        "pathfn": lambda path: path,
        "allow_move_dir": True,
        "allow_append_to_file": True,
    }
