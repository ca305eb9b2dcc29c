"""fsck: what there is, what is wrong, and whether every byte can be read. It reports and does not repair."""

from gfs_sim import chunks, layout, namespace
from gfs_sim.examine import Examined, examine
from gfs_sim.master import Master
from gfs_sim.placement import misplaced
from gfs_sim.recovery import record_findings
from gfs_sim.values import Health, Problem


def check(master: Master, path: str, *, verify: bool) -> Health:
    """Return the health of what is at or below ``path``. See ``Store.fsck``.

    Bad replicas found are reported to the master, as a reader would.
    """
    hidden = layout.is_hidden(path)
    with master.database.read() as connection:
        node = namespace.get(connection, path)
        nodes = [node, *namespace.subtree(connection, path)] if node.is_dir else [node]
        default = chunks.settings(connection).replication
        racks = dict(connection.execute("SELECT name, rack FROM servers WHERE state = 'live'").fetchall())
        places: dict[int, tuple[str, int]] = {}
        for each in nodes:
            if each.content is not None:
                for number, handle in enumerate(namespace.handles_of(connection, each.content)):
                    places.setdefault(handle, (each.path, number))
    examined = [e for e in examine(master, path=path, verify=verify) if hidden or not e.state.deleted]
    record_findings(master, examined)
    examined = [e for e in examined if e.state.handle in places]
    files = [each for each in nodes if not each.is_dir]
    problems: list[Problem] = []
    good = [len(e.state.sources) for e in examined]
    wrong = [_rack_trouble(e, racks) for e in examined]
    for found, copies, misreplicated in zip(examined, good, wrong, strict=True):
        problems += _problems(found, places[found.state.handle], copies, misreplicated)
    lost = [e for e, copies in zip(examined, good, strict=True) if not copies]
    return Health(
        path=path,
        healthy=not lost,
        verified=verify,
        files=len(files),
        dirs=len(nodes) - len(files),
        chunks=len(examined),
        bytes=sum(each.size for each in files),
        replicas=sum(good),
        minimally_replicated=sum(copies >= 1 for copies in good),
        under_replicated=sum(copies < e.state.goal for e, copies in zip(examined, good, strict=True)),
        over_replicated=sum(copies > e.state.goal for e, copies in zip(examined, good, strict=True)),
        misreplicated=sum(wrong),
        missing_replicas=sum(max(0, e.state.goal - copies) for e, copies in zip(examined, good, strict=True)),
        corrupt_replicas=sum(r.condition == "corrupt" for e in examined for r in e.state.replicas),
        lost_chunks=len(lost),
        lost_files=tuple(sorted({places[e.state.handle][0] for e in lost})),
        default_replication=default,
        average_replication=sum(good) / len(good) if good else 0.0,
        servers=len(racks),
        servers_wanted=max(
            (e.state.goal for e, copies in zip(examined, good, strict=True) if copies < e.state.goal),
            default=0,
        ),
        racks=len(set(racks.values())),
        problems=tuple(problems),
    )


def _rack_trouble(each: Examined, racks: dict[str, str]) -> bool:
    used = [racks[server] for server in each.state.sources if server in racks]
    return len(used) > 1 and misplaced(used, set(racks.values()))


def _problems(each: Examined, place: tuple[str, int], copies: int, misreplicated: bool) -> list[Problem]:
    path, number = place
    handle, goal = each.state.handle, each.state.goal

    def problem(kind: str, server: str | None, detail: str) -> Problem:
        return Problem(kind=kind, path=path, chunk_index=number, handle=handle, server=server, detail=detail)

    found = [
        problem(replica.condition, replica.server, each.details.get(replica.server, ""))
        for replica in each.state.replicas
        if replica.condition != "good"
    ]
    if not copies:
        found.append(problem("lost", None, "no good replica"))
    elif copies < goal:
        found.append(problem("under", None, f"{copies} of {goal} replicas"))
    elif copies > goal:
        found.append(problem("over", None, f"{copies} replicas for a goal of {goal}"))
    if misreplicated:
        found.append(problem("misplaced", None, "all replicas are on one rack"))
    return found
