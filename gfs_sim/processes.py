"""Who writes: an identity for this process, and whether the process behind an identity still lives.

It names the machine's boot and the process's start, so that a number used again is not mistaken.
A process in another PID namespace cannot be looked up; then the end of its lease decides.
"""

import os
import socket
from functools import lru_cache


@lru_cache(maxsize=1)
def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start_of(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The command's name may hold spaces and brackets; the start time is field 22.
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    except OSError:
        return "?"
    return None if fields[0] in "ZX" else fields[19]


@lru_cache(maxsize=4)
def _identity(pid: int) -> str:
    return f"{_machine()}/{pid}/{_start_of(pid)}"


def this_process() -> str:
    """Return this process's identity, the same for its whole life (a fork has its own)."""
    return _identity(os.getpid())


def is_alive(identity: str) -> bool | None:
    """Return whether the process of that identity still runs, None if that cannot be known from here."""
    machine, pid, start = identity.rsplit("/", 2)
    if machine != _machine():
        # The same kernel with another PID namespace cannot be looked into; another boot is over.
        return None if machine.split("/")[0] == _machine().split("/")[0] else False
    return _start_of(int(pid)) == start
