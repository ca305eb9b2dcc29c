"""Upkeep that runs plans: repair, balance, garbage collection, and the rebuilding of lost locations.

Each step looks again at what it is about to change, inside a transaction: the store is in use meanwhile.
"""

import contextlib
import itertools
import random
import sqlite3
import time
from pathlib import Path

from gfs_sim import chunks, layout, namespace
from gfs_sim.chunks import Chunk
from gfs_sim.database import REPLICAS
from gfs_sim.examine import Examined, examine
from gfs_sim.master import Master
from gfs_sim.placement import Candidate
from gfs_sim.plans import ChunkPlan, Clone, Removal, plan_balance, plan_chunk, plan_repairs
from gfs_sim.server import BadReplica, scan_folder, stage_clone
from gfs_sim.values import CollectReport, RepairReport

STRAY_AFTER_S = 600.0
"""A temporary file this old belongs to nobody."""
TRY_AGAIN_S = 60.0
"""So long a chunk that could not be mended is let rest."""
_BATCH = 500


def repair(master: Master, *, verify: bool = False, handles: list[int] | None = None) -> RepairReport:
    """Bring chunks (all, or ``handles``) to their replica goal, worst first. See ``Store.repair``."""
    master.bury_dead_writers(at_once=True)
    examined = examine(master, handles=handles, verify=verify)
    record_findings(master, examined)
    by_handle = {each.state.handle: each for each in examined}
    plans = plan_repairs([each.state for each in examined], _live(master), random.Random())
    report = RepairReport(lost_chunks=sum(not each.state.sources for each in examined))
    for plan in plans:
        report = add(report, run_plan(master, by_handle[plan.handle].chunk, plan))
    with master.database.write() as connection:
        if handles is None:
            connection.execute("DELETE FROM repairs")
        else:
            connection.executemany("DELETE FROM repairs WHERE handle = ?", ((handle,) for handle in handles))
    master.collect_all()
    return report


def mend_next(master: Master) -> RepairReport:
    """Mend the one chunk asked for that needs it most; the bounded step of a writer that closes."""
    now = time.time()
    with master.database.write() as connection:
        rows = connection.execute(
            "SELECT handle FROM repairs WHERE tried < ? LIMIT 32", (now - TRY_AGAIN_S,)
        ).fetchall()
        handles = [handle for (handle,) in rows]
        # Claimed: another closing writer takes others, and one that cannot be mended now is let rest.
        connection.executemany(
            "UPDATE repairs SET tried = ? WHERE handle = ?", ((now, handle) for handle in handles)
        )
    examined = examine(master, handles=handles)
    record_findings(master, examined)
    live = _live(master)
    plans = [plan_chunk(each.state, live, random.Random()) for each in examined]
    idle = [plan.handle for plan in plans if not plan.clones and not plan.removals and not plan.lacking]
    busy = sorted((plan for plan in plans if plan.clones or plan.removals), key=lambda plan: plan.priority)
    report = RepairReport()
    if busy:
        chunk = next(each.chunk for each in examined if each.state.handle == busy[0].handle)
        report = run_plan(master, chunk, busy[0])
        if not report.waiting:
            idle.append(busy[0].handle)
    known = {plan.handle for plan in plans}
    done = idle + [handle for handle in handles if handle not in known]
    again = [plan.handle for plan in busy[1:]]
    with master.database.write() as connection:
        connection.executemany("DELETE FROM repairs WHERE handle = ?", ((handle,) for handle in done))
        connection.executemany(
            "UPDATE repairs SET tried = 0 WHERE handle = ?", ((handle,) for handle in again)
        )
    return report


def record_findings(master: Master, examined: list[Examined]) -> None:
    """Tell the master what was found: bad replicas, and those reported bad that are good after all."""
    now = time.time()
    found = [
        (each, replica)
        for each in examined
        for replica in each.state.replicas
        if replica.condition != "unreachable"
    ]
    with master.database.read() as connection:
        bad = set(connection.execute("SELECT handle, server FROM replicas WHERE bad").fetchall())
    changed = [
        (each, replica)
        for each, replica in found
        if ((each.state.handle, replica.server) in bad) == (replica.condition == "good")
    ]
    if not changed:
        return
    with master.database.write() as connection:
        for each, replica in changed:
            handle = each.state.handle
            if replica.condition == "good":
                connection.execute(
                    "UPDATE replicas SET bad = 0 WHERE handle = ? AND server = ?", (handle, replica.server)
                )
            else:
                detail = each.details[replica.server]
                chunks.mark_bad(connection, handle, replica.server, replica.condition, detail, now)


def _live(master: Master) -> list[Candidate]:
    free = master.free_bytes()
    with master.database.read() as connection:
        return chunks.candidates(connection, free, time.time())


def add(first: RepairReport, second: RepairReport) -> RepairReport:
    """Return the two reports as one."""
    return RepairReport(
        cloned=first.cloned + second.cloned,
        cloned_bytes=first.cloned_bytes + second.cloned_bytes,
        removed=first.removed + second.removed,
        lost_chunks=first.lost_chunks + second.lost_chunks,
        waiting=first.waiting + second.waiting,
    )


def run_plan(master: Master, chunk: Chunk, plan: ChunkPlan) -> RepairReport:
    """Run a chunk's plan and return what was done; what has changed since the plan was made is left alone."""
    cloned = sum(run_clone(master, chunk, each) for each in plan.clones)
    removed = sum(run_removal(master, each) for each in plan.removals)
    waiting = int(plan.lacking > 0 or cloned < len(plan.clones))
    return RepairReport(
        cloned=cloned,
        cloned_bytes=cloned * chunk.length,
        removed=removed,
        waiting=waiting,
    )


def run_clone(master: Master, chunk: Chunk, plan: Clone) -> bool:
    """Copy a replica, verified on the way; False if no source could give it or the chunk changed meanwhile."""
    for server in plan.sources:
        try:
            with master.open_replica(server, chunk) as source:
                staged = stage_clone(
                    source,
                    master.folder,
                    plan.target,
                    plan.handle,
                    length=chunk.length,
                    version=source.sums.version,
                    durable=master.durable,
                )
        except BadReplica as bad:
            master.report(plan.handle, server, bad)
            continue
        except OSError as error:
            master.note("clone failed", plan.target, plan.handle, str(error))
            return False
        try:
            with master.database.write() as connection:
                if not _may_place(connection, chunk, plan.target):
                    return False
                staged.place()
                chunks.set_replica(connection, plan.handle, plan.target, chunk.length)
                chunks.record_event(
                    connection, time.time(), "cloned", plan.target, plan.handle, f"from {server}"
                )
            return True
        except OSError as error:
            master.note("clone failed", plan.target, plan.handle, str(error))
            return False
        finally:
            staged.discard()
    return False


def _may_place(connection: sqlite3.Connection, chunk: Chunk, target: str) -> bool:
    """Return whether a clone is still right: same chunk, live server, and no replica there that is in use.

    Under the write lock nobody can begin to append to what is there; somebody who has begun holds a lease.
    """
    row = connection.execute(
        "SELECT version, length, lease IS NOT NULL AND lease_until >= ? FROM chunks WHERE handle = ?",
        (time.time(), chunk.handle),
    ).fetchone()
    if row is None or row[:2] != (chunk.version, chunk.length):
        return False
    listed = connection.execute(
        "SELECT bad FROM replicas WHERE handle = ? AND server = ?", (chunk.handle, target)
    ).fetchone()
    if listed is not None and (not listed[0] or row[2]):
        return False
    return bool(
        connection.execute("SELECT state FROM servers WHERE name = ?", (target,)).fetchone() == ("live",)
    )


def run_removal(master: Master, plan: Removal) -> bool:
    """Forget a replica and remove its files, if enough others that are to stay are good; else leave it."""
    with master.database.write() as connection:
        others = connection.execute(
            "SELECT COUNT(*) FROM replicas JOIN servers ON name = server"
            " WHERE handle = ? AND server <> ? AND NOT bad AND state = 'live'",
            (plan.handle, plan.server),
        ).fetchone()[0]
        held = connection.execute(
            "SELECT 1 FROM replicas JOIN chunks USING (handle)"
            " WHERE handle = ? AND server = ? AND (lease IS NULL OR lease_until < ?)",
            (plan.handle, plan.server, time.time()),
        ).fetchone()
        if others < plan.needs or not held:
            return False  # done already, no longer right, or somebody is appending to it
        chunks.forget_replica(connection, plan.handle, plan.server)
        chunks.record_event(connection, time.time(), "removed", plan.server, plan.handle, plan.reason)
    master.collect([(plan.handle, plan.server)])
    return True


def balance(master: Master, *, threshold: float = 0.1) -> RepairReport:
    """Move replicas from fuller servers to emptier ones. See ``Store.balance``."""
    examined = examine(master)
    by_handle = {each.state.handle: each.chunk for each in examined}
    report = RepairReport()
    for copy, removal in plan_balance([each.state for each in examined], _live(master), threshold):
        chunk = by_handle[copy.handle]
        if not run_clone(master, chunk, copy):
            continue
        removed = run_removal(master, removal)
        report = add(report, RepairReport(cloned=1, cloned_bytes=chunk.length, removed=int(removed)))
    return report


def collect_garbage(master: Master, *, older_than_s: float | None = None) -> CollectReport:
    """Remove deleted files for good, replaced bytes that are due, dead writers' chunks, and orphans."""
    master.bury_dead_writers(at_once=True)
    now = time.time()
    entries = 0
    dropped = 0
    with master.database.write(durable=master.durable) as connection:
        keep_s = chunks.settings(connection).gc_after_s if older_than_s is None else older_than_s
        old = connection.execute("SELECT stamp FROM deletions WHERE time <= ?", (now - keep_s,)).fetchall()
        for (stamp,) in old:
            namespace.remove(connection, f"{layout.HIDDEN}/{stamp}", retire_due=0.0)
            connection.execute("DELETE FROM deletions WHERE stamp = ?", (stamp,))
            entries += 1
        dropped += chunks.reap(connection, now, -1)
    count, size = master.collect_all()
    orphans = 0
    for handle, server in find_orphans(master):
        removed = master.collect([(handle, server)])
        orphans += 1
        count, size = count + removed[0], size + removed[1]
    _remove_strays(master)
    return CollectReport(
        deleted_entries=entries, chunks=dropped, replica_files=count, freed_bytes=size, orphans=orphans
    )


def find_orphans(master: Master) -> list[tuple[int, str]]:
    """Return (handle, server) of replicas on disk that the master has no use for (GFS 4.4).

    A handle's row exists before its files, so an unknown handle is garbage at any moment. A living chunk's
    replica that is not listed is one only if it is stale; a current one is listed again.
    """
    with master.database.read() as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM servers WHERE state <> 'dead'")]
    orphans = []
    for name in names:
        scan = scan_folder(master.folder, name)
        while batch := list(itertools.islice(scan, _BATCH)):
            with master.database.read() as connection:
                marks = ",".join("?" * len(batch))
                known = {
                    handle
                    for (handle,) in connection.execute(
                        f"SELECT handle FROM chunks WHERE handle IN ({marks})", batch
                    )
                }
                listed = {
                    handle
                    for (handle,) in connection.execute(
                        f"SELECT handle FROM replicas WHERE server = ? AND handle IN ({marks})",
                        (name, *batch),
                    )
                }
            orphans += [(handle, name) for handle in batch if handle not in known]
            for handle in batch:
                if handle in known and handle not in listed and master.adopt(handle, name) == "stale":
                    orphans.append((handle, name))
    return orphans


def _remove_strays(master: Master) -> None:
    """Remove temporary files of chunks that are gone, and old ones: those of a clone or append that died."""
    limit = time.time() - STRAY_AFTER_S
    strays = list(Path(master.folder).glob(f"*/*/*{layout.TEMPORARY_SUFFIX}"))
    with master.database.read() as connection:
        known = {handle for (handle,) in connection.execute("SELECT handle FROM chunks")} if strays else set()
    for path in strays:
        with contextlib.suppress(FileNotFoundError):
            if layout.handle_of_temporary(path.name) not in known or path.stat().st_mtime < limit:
                path.unlink()


def rescan(master: Master) -> int:
    """Rebuild the locations of all chunks from the servers' folders; return the replicas listed.

    The folders are read beforehand. What was published meanwhile, and so is listed but was not seen, is
    looked up on its server inside the transaction. Unpublished chunks keep their locations: their writers
    know where they are, and have written no sums yet.
    """
    with master.database.write() as connection:
        for statement in REPLICAS.split(";"):
            connection.execute(statement)
        names = [name for (name,) in connection.execute("SELECT name FROM servers WHERE state <> 'dead'")]
    seen = {(handle, name) for name in names for handle in scan_folder(master.folder, name)}
    with master.database.write() as connection:
        listed = connection.execute(
            "SELECT replicas.handle, server FROM replicas LEFT JOIN chunks USING (handle)"
            " WHERE writer IS NULL OR lease IS NOT NULL"
        ).fetchall()
        current = {place for place in seen.union(listed) if master.is_current(connection, *place)}
        for handle, server in listed:
            if (handle, server) not in current:
                connection.execute("DELETE FROM replicas WHERE handle = ? AND server = ?", (handle, server))
        for handle, server in current:
            length = connection.execute("SELECT length FROM chunks WHERE handle = ?", (handle,)).fetchone()[0]
            chunks.set_replica(connection, handle, server, length)
        connection.execute(
            "UPDATE servers SET used_bytes = (SELECT COALESCE(SUM(bytes), 0) FROM replicas WHERE server = name)"
        )
        chunks.record_event(connection, time.time(), "rescan", None, None, f"{len(current)} replicas found")
    return len(current)
