"""Real ranks: processes that all run one function, and a launcher that starts them, waits, and judges if one fails.

After the start the launcher moves no data and decides nothing; the ranks talk to each other.  It only hears how each ended,
and tells the others if one has failed.  No process, no shared memory and no port is left over, however it ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BadCollective
from ..travel import by_value, local_modules, pickle_by_value
from .overseer import Crew, oversee
from .pairs import Kinds, check_kinds
from .rank import Orders
from .rendezvous import TOKEN_BYTES, Door, pair

#: Which modules travel by value is a setting of the whole process.
_PACKING = threading.Lock()
_START = (
    "import sys; descriptor, sys.path[:] = int(sys.argv[1]), sys.argv[2:]; sys.argv[1:] = []; "
    "from dag.collectives.rank import main; main(descriptor)"
)


def launch(
    function: Callable[..., Any],
    ranks: int = 4,
    arguments: Sequence[Any] = (),
    *,
    transport: Kinds = "auto",
    timeout_s: float = 300.0,
    scheduler: str | None = None,
    here: int | None = None,
    host: str = "127.0.0.1",
    invite: Callable[[str], object] = lambda command: print(command, file=sys.stderr, flush=True),
) -> list[Any]:
    """Run ``function(comm, *arguments)`` on ``ranks`` processes and return what each returned, in the order of ranks.

    Functions and classes of the caller's own modules travel by value, so it works from a script without a guard and from a
    notebook (what ranks print goes to the terminal of the process).  Each rank is a fresh interpreter with a process group of
    its own; ``OMP_NUM_THREADS`` is its share of the cores unless the environment sets it.

    When a rank fails, the others raise what it did from their present or next collective; those that have not ended ten seconds
    later are killed.  A collective that a rank had already completed is not undone.

    Args:
        transport: ``shm`` (ranks of one machine), ``tcp``, ``auto`` (for each pair shared memory if they are on one machine,
            else TCP), or a function of two ranks that names theirs.
        timeout_s: how long a rank in a collective waits for one that does not come.
        scheduler: the address of a running Dask cluster, ``tcp://...``; its workers start the ranks.
        here: how many ranks, from 0 on, are started on this machine; the others are started elsewhere by the commands that
            ``invite`` is called with, which hold the run's token.
        host: the address at which this machine is reached by those.

    Raises:
        RankFailed: a rank died, raised, was late, or returned while others waited for it; ``__cause__`` is what it raised.
        RanksDiffer: ranks called different collectives, or with shapes, dtypes or operators that do not fit.
        BadCollective: nothing could be started.
    """
    check_kinds(transport)
    if ranks < 1:
        raise BadCollective(f"there is at least 1 rank, got {ranks}")
    if not (timeout_s > 0 and math.isfinite(timeout_s)):
        raise BadCollective(f"timeout_s is a number of seconds above 0, got {timeout_s}")
    started = ranks if here is None else here
    if not 0 <= started <= ranks:
        raise BadCollective(f"here is a number of ranks from 0 to {ranks}, got {here}")
    token = secrets.token_bytes(TOKEN_BYTES)
    packed, given, kinds = _packed(function, tuple(arguments), transport)

    def orders(rank: int) -> Orders:
        # Those from elsewhere have to reach the ranks that are started here.
        own = host if scheduler is None and rank < started < ranks else ""
        return Orders(
            rank=rank, size=ranks, token=token, timeout_s=timeout_s, kinds=kinds, function=packed, arguments=given, host=own
        )  # fmt: skip

    with Crew(ranks, orders) as crew, contextlib.ExitStack() as stack:
        if scheduler is not None:
            from .on_dask import start_on_workers

            stack.enter_context(start_on_workers(crew, scheduler, token))
        else:
            for rank in range(started):
                start(crew, rank)
            if started < ranks:
                door = stack.enter_context(contextlib.closing(Door(host, token, crew.enter)))
                for rank in range(started, ranks):
                    invite(
                        f"DAG_TOKEN={token.hex()} python -m dag.collectives.joining {door.address} {rank} {ranks}"
                    )
        return oversee(crew, timeout_s)


def start(crew: Crew, rank: int) -> None:
    """Start the process of a rank on this machine."""
    line, there = pair()
    with there:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(there.fileno()), *(path or os.getcwd() for path in sys.path)],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // crew.ranks)), **os.environ},
            process_group=0,
        )
    crew.add(rank, line, process)


def _packed(
    function: Callable[..., Any], arguments: tuple[Any, ...], kinds: Kinds
) -> tuple[bytes, bytes, bytes]:
    """Return the pickles; the modules of this distribution are everywhere, the caller's own may not be."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own = [
        name
        for name in local_modules()
        if not (getattr(sys.modules.get(name), "__file__", None) or "").startswith(
            (os.path.join(home, name, ""), os.path.join(home, f"{name}.py"))
        )
    ]
    with _PACKING, by_value(own):
        done = []
        for what, value in (("function", function), ("arguments", arguments), ("transport", kinds)):
            try:
                done.append(pickle_by_value(value))
            except Exception as error:
                raise BadCollective(
                    f"the {what} cannot be sent to the ranks: {type(error).__name__}: {error}; "
                    "make inside the function what it cannot take along"
                ) from error
    return done[0], done[1], done[2]
