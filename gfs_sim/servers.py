"""Chunk servers come and go: add, drain, kill, revive, and what each of them holds."""

from gfs_sim.master import Master
from gfs_sim.values import RepairReport, ServerStatus


def statuses(master: Master) -> list[ServerStatus]:
    raise NotImplementedError


def add(master: Master, name: str | None, *, rack: str | None, capacity_bytes: int | None) -> str:
    raise NotImplementedError


def drain(master: Master, name: str) -> RepairReport:
    raise NotImplementedError


def kill(master: Master, name: str) -> int:
    raise NotImplementedError


def revive(master: Master, name: str) -> int:
    raise NotImplementedError
