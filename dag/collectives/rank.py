"""The process of one rank: it hears what to do, meets the others, calls the function and says what came of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ..errors import BadCollective, RankFailed
from .comm import Comm
from .lookout import Lookout, end_at_once
from .pairs import Kinds, all_share, close_unused, connect, open_transports
from .rendezvous import Line
from .transport import Seat, Transport

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What the launcher tells a rank first; ``function``, ``arguments`` and ``kinds`` are pickles.

    ``host`` is the address of its machine for the other ranks; "" is that of its connection with the launcher.
    """

    rank: int
    size: int
    token: bytes
    timeout_s: float
    kinds: bytes
    function: bytes
    arguments: bytes
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a rank tells the launcher for the others: on which machine it is and how it is reached, by transport."""

    machine: str
    pid: int
    offers: dict[str, Any]


def main(descriptor: int) -> None:
    """Be a rank, started by a launcher that has the other end of the socket ``descriptor``."""
    die_with_parent()
    os.set_inheritable(descriptor, False)
    be_rank(Line(socket.socket(fileno=descriptor)))


def die_with_parent() -> None:
    """Have the system kill this process when the thread that started it ends, where it can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def be_rank(line: Line) -> bool:
    """Do what the launcher at the other end of ``line`` says; returns when all ranks have ended whether this one did well.

    Raises:
        BadCollective: the launcher has no such place.
        RankFailed: the launcher is gone.
    """
    try:
        what, orders = line.receive()
    except EOFError as error:
        raise RankFailed("the launcher was gone before the run began", -1) from error
    if what == "refused":
        raise BadCollective(f"the launcher refuses: {orders}")
    lookout = Lookout(line, orders.timeout_s)
    comm: Comm | None = None
    opened: dict[str, Transport] = {}
    try:
        function: Callable[..., Any] = pickle.loads(orders.function)
        comm = _meet(orders, line, lookout, opened)
        lookout.listen(end_at_once)
        result = function(comm, *pickle.loads(orders.arguments))
        comm.finish()
        try:
            packed = cloudpickle.dumps(result)
        except Exception as error:
            raise TypeError(
                f"the result, {type(result).__qualname__}, cannot be sent back: {error}"
            ) from error
        line.send("returned", packed, lookout.returned())
        well = True
    except BaseException as error:
        try:
            line.send("raised", *_described(error), lookout.returned())
        except OSError:
            # The launcher is gone, or the function has closed the line: nothing can be told, and nothing will be heard.
            end_at_once()
        if comm is None:
            # Peers may still be opening what this rank has offered: they would fail for another reason.
            lookout.listen(end_at_once)
            lookout.wait_for_the_end()
            for each in opened.values():
                each.close()
            return False
        well = False
    sys.stdout.flush()
    sys.stderr.flush()
    # Peers may still read from here.
    lookout.wait_for_the_end()
    comm.close()
    return well


def machine() -> str:
    """Return what is equal for processes that can see each other's memory: kernel, process namespace, user."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"
    except OSError:
        return f"{socket.gethostname()} {os.getuid()}"


def _meet(orders: Orders, line: Line, lookout: Lookout, opened: dict[str, Transport]) -> Comm:
    """Return the communicator; what was opened on the way is in ``opened``, also where this raises."""
    seat = Seat(rank=orders.rank, size=orders.size, token=orders.token, host=orders.host or line.own_host)
    kinds: Kinds = pickle.loads(orders.kinds)
    opened.update(open_transports(kinds, seat, lookout))
    offers = {name: each.offer() for name, each in opened.items()}
    line.send("hello", Hello(machine=machine(), pid=os.getpid(), offers=offers))
    while (heard := _heard(line))[0] == "peers":
        hellos: list[Hello] = heard[1]
        machines = [each.machine for each in hellos]
        try:
            transport = connect(kinds, seat, opened, machines, [each.offers for each in hellos])
        except OSError as error:
            if kinds != "auto" or "shm" not in hellos[orders.rank].offers:
                raise
            line.send("connected", f"{type(error).__name__}: {error}")
        else:
            line.send("connected", "")
    close_unused(opened, transport)
    near = all_share(kinds, machines, [each.offers for each in hellos])
    return Comm(transport, lookout, machines, near)


def _heard(line: Line) -> tuple[Any, ...]:
    try:
        heard = line.receive()
    except EOFError:
        end_at_once()
    if heard[0] == "verdict":
        raise pickle.loads(heard[1])
    return heard


def _described(error: BaseException) -> tuple[str, bytes, str]:
    """Return an error in words, its pickle or nothing, and its traceback without the frames of this module."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    try:
        packed = cloudpickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = b""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__, packed, text
