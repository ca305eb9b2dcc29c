"""``mr fs``: the chunk store on the command line.

It translates words into calls of ``gfs_sim`` and prints what comes back; what each command promises stands in
its help.
"""

from __future__ import annotations

import click

from . import fs_care, fs_files
from .fs_store import StoreGroup


@click.group(cls=StoreGroup)
def fs() -> None:
    """Work with the chunk store: its files, its servers, its health.

    Paths may be typed as /a/b, a/b or gfs://a/b.
    """


for command in (
    fs_care.init,
    fs_files.ls,
    fs_files.put,
    fs_files.get,
    fs_files.cat,
    fs_files.rm,
    fs_files.mv,
    fs_files.cp,
    fs_files.mkdir,
    fs_files.append,
    fs_files.du,
    fs_care.df,
    fs_care.stat,
    fs_care.setrep,
    fs_care.snapshot,
    fs_care.undelete,
    fs_care.fsck,
    fs_care.repair,
    fs_care.balance,
    fs_care.gc,
    fs_care.server,
):
    fs.add_command(command)
