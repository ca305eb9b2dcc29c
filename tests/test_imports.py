"""The rooms of the house know only what they may know."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("gfs_sim", "mapreduce", "dag", "jobs")
MAY_IMPORT = {"gfs_sim": set(), "mapreduce": set(), "dag": set(), "jobs": {"gfs_sim", "mapreduce", "dag"}}
PURE = (
    "mapreduce/coordinator.py",
    *(
        f"dag/{name}.py"
        for name in ("graph", "logical", "expand", "analysis", "placement", "memory", "units")
    ),
    *(f"dag/{name}.py" for name in ("draw", "boxes", "layout", "rails")),
    *sorted(
        str(path.relative_to(ROOT))
        for name in ("rewrite*", "recovery*")
        for path in (ROOT / "dag").glob(f"{name}.py")
    ),
)
IMPURE = {"os", "time", "threading", "fsspec", "dask", "distributed", "subprocess", "socket"}


def imported_at(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        wrong = (imported_at(path) & set(ROOMS)) - MAY_IMPORT[room] - {room}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_has_no_clock_and_no_files(module: str) -> None:
    assert not imported_at(ROOT / module) & IMPURE


def test_graphs_are_built_analysed_and_drawn_without_dask() -> None:
    code = (
        "import sys; from dag import *; g = Graph.from_tasks({'a': (min,)}); analyse(g); draw_svg(g); draw_text(g);"
        "heavy = {'dask', 'distributed', 'numpy', 'pandas', 'pyarrow', 'fsspec'} & set(sys.modules);"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_function_of_the_graph_package_is_never_hidden_by_the_module_of_its_name() -> None:
    code = (
        "import importlib, pathlib, dag;"
        "[importlib.import_module('dag.' + path.stem) for path in pathlib.Path(dag.__file__).parent.glob('[a-z]*.py')];"
        "assert all(not isinstance(getattr(dag, name), type(dag)) for name in dag.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_help_page_loads_no_heavy_library() -> None:
    code = (
        "import sys; from jobs.cli import mr; mr.main(['--help'], standalone_mode=False);"
        "heavy = {'pyarrow', 'numpy', 'dask', 'pandas', 'fsspec'} & set(sys.modules);"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout
