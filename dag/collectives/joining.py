"""Be a rank of a run that was launched on another machine.

``DAG_TOKEN=... python -m dag.collectives.joining HOST:PORT RANK SIZE``: the launcher gives that command, token included, to
its ``invite``; the function and its arguments come over the line.
"""

from __future__ import annotations

import os
import sys

from ..errors import BadCollective, RankFailed
from .rank import be_rank
from .rendezvous import knock


def join(address: str, rank: int, size: int, token: bytes | None = None) -> bool:
    """Take the place of ``rank`` in the run of ``size`` ranks launched at ``address``; returns when the run has ended.

    Returns whether this rank's function returned; how the run ended is told by the launcher.

    Args:
        token: of the run; None takes what the environment variable ``DAG_TOKEN`` holds, in hexadecimal digits.

    Raises:
        BadCollective: there is no token, it is not that of the run, or the launcher has no such place.
        RankFailed: the launcher cannot be reached, or was gone before the run began.
    """
    if token is None:
        try:
            token = bytes.fromhex(os.environ["DAG_TOKEN"])
        except (KeyError, ValueError):
            raise BadCollective(
                "the environment variable DAG_TOKEN does not hold the token of the run; the launcher tells the whole command"
            ) from None
    try:
        line = knock(address, token)
    except ValueError as error:
        raise BadCollective(str(error)) from None
    except OSError as error:
        raise RankFailed(f"rank {rank} cannot join the run at {address}: {error}", rank) from error
    try:
        line.send("join", rank, size)
        return be_rank(line)
    finally:
        line.close()


def main(arguments: list[str]) -> int:
    """Join as the command line says; returns the exit code."""
    if len(arguments) != 3 or not all(each.isdigit() for each in arguments[1:]):
        print("usage: DAG_TOKEN=... python -m dag.collectives.joining HOST:PORT RANK SIZE", file=sys.stderr)
        return 2
    try:
        return 0 if join(arguments[0], int(arguments[1]), int(arguments[2])) else 1
    except (BadCollective, RankFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
