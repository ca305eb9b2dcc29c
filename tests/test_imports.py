"""The rooms of the house know only what they may know."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import cloudpickle
import pytest

import dag.collectives
from dag.collectives.check import check
from dag.events import note

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
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "dag" / "dataflow").glob("*.py")
        if not path.match("program.py") and not path.match("on_dask.py") and not path.match("backend_*.py")
    ),
)
PURE += tuple(
    f"dag/collectives/{name}.py"
    for name in (
        "schedule", "ring", "server", "direct", "trees", "halving", "two_level", "binomial", "scattered", "plans",
        "blocking", "check", "count", "table", "choose", "operators", "transport", "folding", "execute", "prepared",
        "verdicts", "buckets", "simulate", "networks", "symmetry", "costs", "one_machine", "calibrate", "draw",
    )
)  # fmt: skip
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


def modules_of(room: str) -> dict[str, Path]:
    """Return the files of a package by the names of their modules."""
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_within(module: str, modules: dict[str, Path]) -> set[str]:
    """Return the modules of the same package that a module imports, anywhere in its text.

    Imports inside functions count, which are there to start faster and not to let two modules need each other,
    and so do those for types alone.  A package's folder does not count as a module that its parts need.
    """
    path = modules[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            upper = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (upper, node.module) if part)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in modules else base)
    return found & modules.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_the_modules_of_a_package_form_layers(room: str) -> None:
    modules = modules_of(room)
    needs = {module: imports_within(module, modules) for module in modules}
    assert any(needs.values())
    sorter = TopologicalSorter(needs)
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail("import each other: " + " -> ".join(reversed(error.args[1])))


def test_every_way_of_importing_a_module_of_the_same_package_is_seen(tmp_path: Path) -> None:
    texts = {
        "a/__init__.py": "from .b import x",
        "a/b.py": "def f():\n    from a import c",
        "a/c.py": "if TYPE_CHECKING:\n    from .d.e import y",
        "a/d/__init__.py": "",
        "a/d/e.py": "from ..f import z\nimport a.g",
        "a/f.py": "from . import g",
        "a/g.py": "import os",
    }
    modules = {}
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        modules[name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = path
    needs = {module: imports_within(module, modules) for module in modules}
    assert needs == {
        "a": {"a.b"}, "a.b": {"a.c"}, "a.c": {"a.d.e"}, "a.d": set(), "a.d.e": {"a.f", "a.g"}, "a.f": {"a.g"},
        "a.g": set(),
    }  # fmt: skip


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


@pytest.mark.parametrize("package", ["dag", "dag.collectives"])
def test_a_function_of_a_package_is_never_hidden_by_the_module_of_its_name(package: str) -> None:
    code = (
        "import importlib, pathlib, types, sys; package = importlib.import_module(sys.argv[1]);"
        "modules = [path.stem for path in pathlib.Path(package.__file__).parent.glob('[a-z]*.py')];"
        "[importlib.import_module(sys.argv[1] + '.' + each) for each in modules if 'torch' not in each];"
        "assert all(not isinstance(getattr(package, name), types.ModuleType) for name in package.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code, package], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["dag", "dag.collectives"])
def test_names_that_are_not_loaded_yet_are_listed(package: str) -> None:
    code = (
        "import importlib, sys; package = importlib.import_module(sys.argv[1]);"
        "sys.exit(bool({*package.__all__} - {*dir(package)}))"
    )
    done = subprocess.run([sys.executable, "-c", code, package], check=False)
    assert done.returncode == 0


def test_a_function_that_names_a_package_of_lazy_names_travels() -> None:
    sent = cloudpickle.dumps(lambda: (dag.note, dag.collectives.check))
    assert pickle.loads(sent)() == (note, check)
    with pytest.raises(AttributeError, match="'dag' has no attribute 'nothing'"):
        _ = dag.nothing


def test_a_rank_loads_no_more_than_it_needs() -> None:
    code = (
        "import sys, dag.collectives.rank;"
        "spare = {'dag.run', 'dag.graph', 'dag.collectives.draw', 'dag.collectives.simulate'} & set(sys.modules);"
        "sys.exit(f'loaded {sorted(spare)}' if spare else 0)"
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
