"""Upkeep without a daemon: what opening a store and closing a writer do for the store beside their own work."""

import contextlib
import time
from pathlib import Path

from gfs_sim import chunks
from gfs_sim.master import STEP_GARBAGE, Master
from gfs_sim.recovery import TRY_AGAIN_S, mend_next, rescan


def open_master(root: Path, *, durable: bool) -> Master:
    """Open the store at ``root``, made if absent; chunk locations that are lost are rebuilt (GFS 2.6.2)."""
    master = Master(root, durable=durable)
    with master.database.read() as connection:
        there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'replicas'").fetchone()
    if not there:
        rescan(master)
    return master


def step(master: Master) -> None:
    """Do the bounded step of a writer that closed: bury the dead, free what is due, mend one chunk.

    The writer's file is published already, so trouble here is not its own and waits for the next.
    """
    with contextlib.suppress(OSError):
        master.bury_dead_writers()
        now = time.time()
        with master.database.read() as connection:
            due, garbage, repair = connection.execute(
                "SELECT EXISTS (SELECT 1 FROM retired WHERE due <= ?), EXISTS (SELECT 1 FROM garbage),"
                " EXISTS (SELECT 1 FROM repairs WHERE tried < ?)",
                (now, now - TRY_AGAIN_S),
            ).fetchone()
        if due:
            with master.database.write() as connection:
                chunks.reap(connection, now, STEP_GARBAGE)
        if due or garbage:
            master.collect_some()
        if repair:
            mend_next(master)
