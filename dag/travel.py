"""Functions and values on their way to other processes: by cloudpickle, what several tasks hold only once.

Modules that the workers cannot import travel by value.  A value that cannot travel is found where it was made, so that the
message can name its node.
"""

from __future__ import annotations

import io
import pickle
import sys
import sysconfig
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import cloudpickle

from .errors import NodeFailed
from .graph import Node

_PLAIN = (type(None), bool, int, float, str, bytes, tuple, frozenset)


@dataclass(frozen=True, slots=True)
class Packed:
    """The pickle of a function, and the numbers of the shared pickles that it is to be read with."""

    data: bytes
    shared: tuple[int, ...]

    def unpack(self, shared: Sequence[bytes]) -> Any:
        """Return the function; ``shared`` are the pickles of the numbers in ``self.shared``."""
        return _Unpickler(self.data, dict(zip(self.shared, shared, strict=True))).load()


def pack(nodes: Iterable[Node]) -> tuple[list[Packed], list[bytes]]:
    """Return the functions of nodes, and the pickles that they share.

    Raises:
        NodeFailed: a function cannot be pickled.
    """
    nodes = list(nodes)
    counts = Counter(id(atom) for node in nodes for atom in _atoms(node.op.function))
    numbers: dict[int, int] = {}
    shared: list[bytes] = []
    for node in nodes:
        for atom in _atoms(node.op.function):
            if counts[id(atom)] > 1 and id(atom) not in numbers:
                pickled, _ = _pickle(atom, {}, node)
                numbers[id(atom)] = len(shared)
                shared.append(pickled)
    packed = []
    for node in nodes:
        data, used = _pickle(node.op.function, numbers, node)
        packed.append(Packed(data, used))
    return packed, shared


def _atoms(function: Any) -> Iterator[Any]:
    """Yield what a function is made of, through ``partial`` and bound methods; plain values left out."""
    pending = [function]
    while pending:
        atom = pending.pop()
        if isinstance(atom, partial):
            pending.extend([atom.func, *atom.args, *atom.keywords.values()])
        elif isinstance(atom, types.MethodType):
            pending.append(atom.__self__)
        elif not isinstance(atom, _PLAIN):
            yield atom


def _pickle(value: Any, numbers: dict[int, int], node: Node) -> tuple[bytes, tuple[int, ...]]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, numbers)
    try:
        pickler.dump(value)
    except Exception as error:  # pickle.PicklingError, TypeError, or what a __reduce__ raises
        raise NodeFailed(
            f"the function of {node.name} ({node.op.kind}) cannot be sent to other processes: "
            f"{type(error).__name__}: {error}; run on threads, or make what it cannot take along inside the function"
        ) from error
    return buffer.getvalue(), tuple(pickler.used)


class _Naming(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        # cloudpickle leaves the file name out of code; a traceback would show neither file nor line.
        if isinstance(obj, types.CodeType):
            make, arguments = self.dispatch_table[types.CodeType](obj)
            return make, tuple(obj.co_filename if each == "<dynamic-code>" else each for each in arguments)
        return super().reducer_override(obj)


class _Pickler(_Naming):
    def __init__(self, file: io.BytesIO, numbers: dict[int, int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers
        self.used: dict[int, None] = {}

    def persistent_id(self, obj: Any) -> int | None:
        number = self._numbers.get(id(obj))
        if number is not None:
            self.used[number] = None
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, shared: dict[int, bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self._shared = shared

    def persistent_load(self, number: int) -> Any:
        return _load_shared(self._shared[number])


@lru_cache(maxsize=128)
def _load_shared(data: bytes) -> Any:
    return pickle.loads(data)


def pickle_by_value(value: Any) -> bytes:
    """Return the pickle of a value, its functions with the names of their files; ``pickle.loads`` reads it."""
    buffer = io.BytesIO()
    _Naming(buffer).dump(value)
    return buffer.getvalue()


def local_modules() -> list[str]:
    """Return the top-level modules loaded here that no other machine has for certain: not installed, not Python's own."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    found: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if top not in sys.stdlib_module_names and not (file and file.startswith(installed)):
            found[top] = None
    return [name for name in found if name not in ("__main__", "__mp_main__", __package__)]


@contextmanager
def by_value(modules: Iterable[str]) -> Iterator[None]:
    """Pickle functions and classes of these modules by value inside the block."""
    known = set(cloudpickle.list_registry_pickle_by_value())
    added = [sys.modules[name] for name in modules if name in sys.modules and name not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def fault_of_value(value: Any) -> str:
    """Return why a value cannot travel, or nothing.  Long containers are judged by their first elements."""
    for leaf in _leaves(value):
        try:
            pickle.dumps(leaf, protocol=5, buffer_callback=_leave_out)
        except Exception as first:
            try:
                cloudpickle.dumps(leaf, protocol=5, buffer_callback=_leave_out)
            except Exception:
                return f"{type(leaf).__module__}.{type(leaf).__qualname__}: {first}"
    return ""


def pack_cause(failure: NodeFailed) -> None:
    """Have what a function raised travel with its failure, if it can; apart, since it may not unpickle elsewhere."""
    cause, failure.__cause__ = failure.__cause__, None
    with suppress(Exception):
        failure.packed_cause = pickle.dumps(cause) if cause is not None else b""


def unpack_cause(failure: NodeFailed) -> None:
    """Put back what ``pack_cause`` has packed."""
    with suppress(Exception):
        cause = pickle.loads(failure.packed_cause) if failure.packed_cause else None
        failure.__cause__ = cause if isinstance(cause, BaseException) else None


def _leave_out(buffer: pickle.PickleBuffer) -> bool:
    return False  # the bytes stay where they are: only whether they could go matters


def _leaves(value: Any, depth: int = 4) -> Iterator[Any]:
    if isinstance(value, str | bytes | int | float | None):
        return
    if type(value) in (list, tuple, set, frozenset, dict) and depth:
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        for at, part in enumerate(parts):
            if at == 16:
                return
            yield from _leaves(part, depth - 1)
    elif not (depth == 0 and type(value) in (list, tuple, set, frozenset, dict)):
        yield value
