"""``mr fs`` on the store itself: init, df, stat, setrep, snapshot, undelete, fsck, repair, balance, gc, server.

There is no daemon: what these commands print is done when they return.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from jobs.sizes import format_size

from .fs_store import (
    StoreCommand,
    StoreGroup,
    given_root,
    match_paths,
    open_filesystem,
    open_store,
    store_path,
)
from .options import Size

if TYPE_CHECKING:
    from gfs_sim import Health, RepairReport, ServerStatus

DAMAGE = ("lost", "corrupt", "missing", "stale", "unreachable")
"""Problems that make ``fsck`` say DAMAGED: bytes that should be on a server are wrong or gone."""
MAX_PROBLEMS = 100


@click.command(cls=StoreCommand)
@click.option("--servers", type=click.IntRange(1, 1000), default=3, show_default=True, help="Chunk servers.")
@click.option("--rack", "racks", multiple=True, metavar="NAME", help="Racks, dealt to the servers in turn.")
@click.option("--chunk-size", type=Size(), default="64MiB", show_default=True, help="Of files to be written.")
@click.option(
    "--replication", type=click.IntRange(min=1), help="Replicas of each chunk. [default: 3, or all servers]"
)
def init(servers: int, racks: tuple[str, ...], chunk_size: int, replication: int | None) -> None:
    """Make a store.

    Without it, the first file written makes the default store, with these defaults.
    """
    from gfs_sim import Store

    if replication is not None and replication > servers:
        raise click.UsageError(f"--replication {replication} needs as many servers; --servers is {servers}")
    store = Store.create(
        given_root(), servers=servers, racks=racks, chunk_bytes=chunk_size, replication=replication
    )
    click.echo(
        f"{store.root}: {_count(servers, 'server')}, chunks of {chunk_size} bytes,"
        f" {_count(store.settings().replication, 'replica')} of each"
    )


@click.command(cls=StoreCommand)
def df() -> None:
    """Show what the servers hold and the room they have left."""
    files = open_filesystem()
    servers = files.store.servers()
    rows = [["server", "state", "used", "free", "capacity", "use"]]
    for each in servers:
        share = f"{each.used_bytes / each.capacity_bytes:.1%}" if each.capacity_bytes else "-"
        sizes = [format_size(n) for n in (each.used_bytes, each.free_bytes, each.capacity_bytes)]
        rows.append([each.name, _state(each), *sizes, share])
    _print_rows(rows, right_from=2)
    held = files.find("/", detail=True)
    kept = sum(entry.size for entry in files.store.deleted())
    click.echo(f"store       {files.store.root}")
    click.echo(f"files       {len(held)}, {format_size(sum(entry['size'] for entry in held.values()))}")
    click.echo(f"deleted     {format_size(kept)} can be undeleted until collected (mr fs gc)")
    click.echo(f"on servers  {format_size(sum(each.used_bytes for each in servers))}, all replicas")


def _state(server: ServerStatus) -> str:
    return server.state if server.reachable or server.state == "dead" else "unreachable"


def _print_rows(rows: list[list[str]], *, right_from: int) -> None:
    """Print a table, its columns from ``right_from`` on to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column >= right_from else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def stat(paths: tuple[str, ...]) -> None:
    """Show a file with its chunks and their servers."""
    files = open_filesystem()
    for path in match_paths(files, *paths):
        status = files.store.stat(path)
        click.echo(f"path         {status.path}")
        click.echo(f"type         {'folder' if status.type == 'directory' else 'file'}")
        click.echo(f"created      {_time(status.created)}")
        click.echo(f"modified     {_time(status.modified)}")
        if status.type == "directory":
            click.echo(f"replication  {status.replication or 'as the folder above'}, for new files")
            continue
        click.echo(f"replication  {status.replication}")
        click.echo(f"size         {status.size} bytes")
        click.echo(f"chunk size   {status.chunk_bytes} bytes")
        click.echo(f"chunks       {len(status.chunks)}")
        if status.chunks:
            rows = [["offset", "length", "handle", "version", "replicas", "servers"]]
            for chunk in status.chunks:
                servers = " ".join(chunk.servers) or "none"
                numbers = (chunk.offset, chunk.length, chunk.handle, chunk.version, len(chunk.servers))
                rows.append([*map(str, numbers), servers])
            _print_rows(rows, right_from=0)


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


@click.command(cls=StoreCommand)
@click.argument("replication", type=click.IntRange(min=1))
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-w", "--wait", is_flag=True, help="Make and remove the replicas now.")
def setrep(replication: int, paths: tuple[str, ...], wait: bool) -> None:
    """Set the number of replicas of files.

    Of a folder: of all files below it and of new ones. `mr fs repair` brings them about, and writers do bit by bit.
    """
    files = open_filesystem()
    changed = sum(files.store.set_replication(path, replication) for path in match_paths(files, *paths))
    click.echo(f"goal of {_count(changed, 'file')}: {_count(replication, 'replica')}")
    live = sum(each.state == "live" for each in files.store.servers())
    if replication > live:
        click.echo(
            f"{_count(live, 'server')} live: there is one replica on each until more are added (mr fs server add)"
        )
    if wait:
        _report(files.store.repair())


@click.command(cls=StoreCommand)
@click.argument("source")
@click.argument("target")
def snapshot(source: str, target: str) -> None:
    """Keep a file or folder as it is now.

    SOURCE appears under the new name TARGET, at once, and no bytes are copied. What is appended later to
    either is not seen in the other.
    """
    store = open_store()
    files = store.snapshot(store_path(source), store_path(target))
    click.echo(f"{store_path(target)}: {_count(files, 'file')}")


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
def undelete(paths: tuple[str, ...]) -> None:
    """Bring back deleted files and folders.

    The latest deletion of PATH; without PATH, list what can be brought back.
    """
    store = open_store()
    if not paths:
        for each in store.deleted():
            click.echo(f"{_time(each.deleted_at)} {each.size:>14}  {each.path}")
    for path in paths:
        click.echo(store.undelete(store_path(path)))


@click.command(cls=StoreCommand)
@click.argument("path", default="/")
@click.option("--quick", is_flag=True, help="Look at names, lengths and versions; read no bytes.")
@click.option("--all", "everything", is_flag=True, help=f"Every problem, not only the first {MAX_PROBLEMS}.")
def fsck(path: str, quick: bool, everything: bool) -> None:
    """Check files: exit 0 if healthy, 1 if damaged.

    Every replica of every chunk at or below PATH; nothing is repaired.

    Damaged: a chunk is lost, or a replica is corrupt, missing, stale or on a server that does not answer.
    Healthy: every replica on record is good. It may be short of replicas where there are fewer servers than a
    file asks for, or until `mr fs repair`; that is named too.
    """
    health = open_store().fsck(store_path(path), verify=not quick)
    problems = sorted(health.problems, key=lambda each: (each.path, each.chunk_index))
    shown = problems if everything else problems[:MAX_PROBLEMS]
    for each in shown:
        server = f" on {each.server}" if each.server else ""
        detail = f": {each.detail}" if each.detail else ""
        click.echo(f"{each.path} chunk {each.chunk_index} {each.kind}{server}{detail}")
    if len(shown) < len(problems):
        click.echo(f"and {len(problems) - len(shown)} more problems; --all shows them")
    damaged = any(each.kind in DAMAGE for each in problems)
    _print_health(health)
    advise(health)
    click.echo(f"The store is {'DAMAGED' if damaged else 'HEALTHY'}")
    click.get_current_context().exit(1 if damaged else 0)


def _print_health(health: Health) -> None:
    rows = (
        ("files", f"{health.files} in {_count(health.dirs, 'folder')}, {format_size(health.bytes)}"),
        (
            "chunks",
            f"{health.chunks}, {health.replicas} good replicas, {health.average_replication:.2f} on average",
        ),
        ("replica goal", f"{health.default_replication} by default"),
        (
            "under-replicated",
            f"{health.under_replicated}, {_count(health.missing_replicas, 'replica')} short",
        ),
        ("over-replicated", str(health.over_replicated)),
        ("on too few racks", str(health.misreplicated)),
        ("corrupt replicas", str(health.corrupt_replicas)),
        ("lost chunks", f"{health.lost_chunks} in {_count(len(health.lost_files), 'file')}"),
        ("live servers", f"{health.servers} in {_count(health.racks, 'rack')}"),
        ("bytes read", "all, against their checksums" if health.verified else "none (--quick)"),
    )
    for name, value in rows:
        click.echo(f"{name:<18}{value}")


def advise(health: Health) -> None:
    """Print what to do about the problems of a health report, a line for each kind that has a remedy."""
    kinds = {each.kind for each in health.problems}
    if kinds & {"corrupt", "missing", "stale", "over", "under", "misplaced"}:
        if health.servers_wanted > health.servers:
            more = _count(health.servers_wanted - health.servers, "server")
            click.echo(
                f"{health.servers_wanted} replicas need a live server each, live now: {health.servers};"
                f" add {more} first (mr fs server add)"
            )
        click.echo("to repair: mr fs repair")
    if "unreachable" in kinds:
        click.echo(
            "a server's folder is not there: put it back, or give the server up: mr fs server kill NAME"
        )
    if "lost" in kinds:
        click.echo("lost chunks come back only with a server that has them: mr fs server revive NAME")


@click.command(cls=StoreCommand)
@click.option("--verify", is_flag=True, help="Read all replicas first; else what fsck or a reader found.")
def repair(verify: bool) -> None:
    """Bring every chunk to its number of replicas.

    Those nearest to loss first; bad replicas are replaced, surplus ones removed. Exit 1 if a chunk is lost.
    """
    _report(open_store().repair(verify=verify))


def _report(done: RepairReport) -> None:
    """Print what was done; exit 1 if a chunk is lost."""
    click.echo(
        f"{_count(done.cloned, 'replica')} made, {format_size(done.cloned_bytes)};"
        f" {_count(done.removed, 'replica')} removed"
    )
    if done.waiting:
        click.echo(
            f"{_count(done.waiting, 'chunk')} short of replicas: no server can take one (mr fs server add)"
        )
    if done.lost_chunks:
        click.echo(f"{_count(done.lost_chunks, 'chunk')} lost: no good replica is left (mr fs fsck)")
        click.get_current_context().exit(1)


@click.command(cls=StoreCommand)
@click.option(
    "--threshold", type=click.FloatRange(0, 1), default=0.1, show_default=True,
    help="How far from the mean use a server may be, as a share of its capacity.",
)  # fmt: skip
def balance(threshold: float) -> None:
    """Move replicas from fuller servers to emptier ones."""
    _report(open_store().balance(threshold=threshold))


@click.command(cls=StoreCommand)
@click.option(
    "--older-than", "older_than_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="Deleted so long ago; 0 is all. [default: the store's, 3 days]",
)  # fmt: skip
def gc(older_than_s: float | None) -> None:
    """Free the space of what was deleted.

    What was deleted long enough ago is removed for good, with every replica that no file needs.
    """
    done = open_store().gc(older_than_s=older_than_s)
    click.echo(
        f"removed {done.deleted_entries} deleted files and folders, {_count(done.chunks, 'chunk')},"
        f" {_count(done.replica_files, 'replica')}, {format_size(done.freed_bytes)}"
    )


@click.group(cls=StoreGroup)
def server() -> None:
    """Add, list, drain, kill and revive chunk servers."""


@server.command("ls")
def list_servers() -> None:
    """List the chunk servers and what they hold."""
    rows = [["server", "state", "rack", "replicas", "used"]]
    for each in open_store().servers():
        rows.append([each.name, _state(each), each.rack, str(each.chunks), format_size(each.used_bytes)])
    _print_rows(rows, right_from=3)


@server.command("add")
@click.argument("name", required=False)
@click.option("--rack", help="Its rack. [default: rack1]")
@click.option("--capacity", type=Size(), help="What it may hold. [default: its disk]")
def add_server(name: str | None, rack: str | None, capacity: int | None) -> None:
    """Add a chunk server.

    Without NAME it gets the next free one, s4 after s3.
    """
    click.echo(open_store().add_server(name, rack=rack, capacity_bytes=capacity))


@server.command("drain")
@click.argument("name")
def drain_server(name: str) -> None:
    """Empty a chunk server and remove it.

    What it holds is copied to the others first; nothing is lost.
    """
    from gfs_sim.errors import NoServer

    store = open_store()
    try:
        done = store.drain_server(name)
    except NoServer as error:
        if {each.name: each.state for each in store.servers()}[name] != "draining":
            raise
        raise NoServer(f"{error.strerror}; to use it again: mr fs server revive {name}") from error
    _report(done)
    if any(each.name == name for each in store.servers()):
        click.echo(f"{name} still has chunks that cannot go yet, and stays: drain it again later")
        click.get_current_context().exit(1)
    click.echo(f"{name} is empty and removed")


@server.command("kill")
@click.argument("name")
def kill_server(name: str) -> None:
    """Have a chunk server fail, to try what follows.

    Its folder is set aside, for `mr fs server revive`.
    """
    lost = open_store().kill_server(name)
    click.echo(f"{name} is dead, {_count(lost, 'replica')} with it; mr fs repair makes new ones")


@server.command("revive")
@click.argument("name")
def revive_server(name: str) -> None:
    """Bring a dead or draining chunk server back.

    Its replicas that are out of date are refused.
    """
    current = open_store().revive_server(name)
    click.echo(f"{name} is live, {_count(current, 'replica')} current")
