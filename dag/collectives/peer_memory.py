"""Reading and writing the memory of another process, where the system allows it, and sleeping until another process rings.

Linux only: ``process_vm_readv``, ``process_vm_writev`` and ``futex`` by ctypes, which lets other threads run meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import sys
from typing import Any

#: Flags in shared memory need stores to be seen in their order, which Python cannot ask for: these processors keep it.
ORDERED = ("x86_64",)
PR_SET_PTRACER = 0x59616D61
SYS_FUTEX = 202  # x86-64
FUTEX_WAIT, FUTEX_WAKE = 0, 1
#: So much is moved by one call.
CALL_BYTES = 64 << 20


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def why_not() -> str | None:
    """Return why ranks cannot share memory on this system, or None if they can."""
    if sys.platform != "linux":
        return f"it is {sys.platform}, not Linux"
    if platform.machine() not in ORDERED:
        return f"its processor is {platform.machine()}, and shared flags need x86-64's order of stores"
    return None


def _functions() -> tuple[Any, Any, Any, Any]:
    library = ctypes.CDLL(None, use_errno=True)
    try:
        read, write = library.process_vm_readv, library.process_vm_writev
    except AttributeError:  # a C library that lacks them
        return None, None, library.syscall, library.prctl
    for call in (read, write):
        call.restype = ctypes.c_ssize_t
        call.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_ulong,
        ]
    return read, write, library.syscall, library.prctl


_CALLS: tuple[Any, Any, Any, Any] = _functions() if sys.platform == "linux" else (None,) * 4
_READ, _WRITE, _SYSCALL, _PRCTL = _CALLS


def allow_siblings() -> None:
    """Let the parent of this process and all that descend from it read this one's memory, where Yama forbids it otherwise."""
    if _PRCTL is not None:
        _PRCTL(PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


class PeerMemory:
    """The memory of process ``pid``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._here, self._there = _Piece(), _Piece()
        self._here_at, self._there_at = ctypes.addressof(self._here), ctypes.addressof(self._there)

    def read(self, here: int, there: int, nbytes: int) -> None:
        """Copy ``nbytes`` from address ``there`` of the peer to address ``here``.

        Raises:
            ProcessLookupError: the peer has ended.
            OSError: it is not allowed.
        """
        self._move(_READ, here, there, nbytes)

    def write(self, here: int, there: int, nbytes: int) -> None:
        """Copy ``nbytes`` from address ``here`` to address ``there`` of the peer; raises as ``read``."""
        self._move(_WRITE, here, there, nbytes)

    def _move(self, call: Any, here: int, there: int, nbytes: int) -> None:
        if call is None:
            raise OSError(errno.ENOSYS, "process_vm_readv is not there")
        while nbytes:
            self._here.base, self._there.base = here, there
            self._here.length = self._there.length = min(nbytes, CALL_BYTES)
            moved = call(self._pid, self._here_at, 1, self._there_at, 1, 0)
            if moved <= 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            here, there, nbytes = here + moved, there + moved, nbytes - moved

    def reads(self, there: int, wanted: bytes) -> bool:
        """Return whether what stands at ``there`` can be read and is ``wanted``."""
        found = ctypes.create_string_buffer(len(wanted))
        with contextlib.suppress(OSError):
            self.read(ctypes.addressof(found), there, len(wanted))
        return found.raw == wanted


def sleep_while(address: int, value: int, at_most_s: float) -> None:
    """Sleep while the 32-bit word at ``address`` is ``value``, until it is rung or ``at_most_s`` (below 1 s) has passed."""
    limit = _Time(0, int(at_most_s * 1e9))
    _SYSCALL(SYS_FUTEX, ctypes.c_void_p(address), FUTEX_WAIT, value, ctypes.byref(limit), None, 0)


def ring(address: int) -> None:
    """Wake whoever sleeps at ``address``."""
    _SYSCALL(SYS_FUTEX, ctypes.c_void_p(address), FUTEX_WAKE, 1, None, None, 0)
