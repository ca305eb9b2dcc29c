"""Keep pyarrow from importing pandas for work that has nothing to do with pandas.

Where pandas is installed, pyarrow imports it with the first array or scalar that it makes, which costs each process a
quarter of a second.  Our packages never import pandas; so when it is asked for on behalf of a line of theirs, it is
pyarrow that looks whether it might be given a Series, and the answer is no.  An import from anywhere else goes through, and
pyarrow is told of it, so a job that uses pandas sees no difference.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_HERE, package, "") for package in ("mapreduce", "dag", "gfs_sim", "jobs"))


class _PandasFinder(MetaPathFinder):
    """Denies pandas to our own packages and finds it for everybody else.

    ``pyarrow_has_looked``: pyarrow has looked for pandas once and was denied it.  It looks for the first time while it holds a
    lock of its own, so only later can it be told from inside an import that pandas is there.
    """

    pyarrow_has_looked = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas":
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_between(frame.f_code.co_filename):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(_OURS):
            raise ModuleNotFoundError("No module named 'pandas'", name=name)
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if self.pyarrow_has_looked:
                    sys.modules["pyarrow"].lib._pandas_api.pd  # noqa: B018  (has it look again)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is_between(file: str) -> bool:
    """Tell whether a frame is the import machinery's or pyarrow's, on the way from the one who asks."""
    if file.startswith("<frozen importlib"):
        return True
    library = getattr(sys.modules.get("pyarrow"), "__file__", None)
    return library is not None and file.startswith(os.path.join(os.path.dirname(library), ""))


def put_off_pandas() -> None:
    """Import pandas in this process only when it is used; for a process that is ours.

    To be called before pyarrow is imported, and once more when it is.
    """
    if "pandas" in sys.modules:
        return
    finder = next((each for each in sys.meta_path if isinstance(each, _PandasFinder)), None)
    if finder is None:
        finder = _PandasFinder()
        sys.meta_path.insert(0, finder)
    if "pyarrow.lib" in sys.modules:
        sys.modules["pyarrow"].lib._pandas_api.have_pandas  # noqa: B018  (looks, and is denied)
        finder.pyarrow_has_looked = True
