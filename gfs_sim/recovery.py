from gfs_sim.master import Master
from gfs_sim.values import CollectReport, RepairReport


def rescan(master: Master) -> int:
    raise NotImplementedError


def mend_next(master: Master) -> None:
    raise NotImplementedError


def repair(master: Master, *, verify: bool) -> RepairReport:
    raise NotImplementedError


def balance(master: Master, *, threshold: float) -> RepairReport:
    raise NotImplementedError


def collect_garbage(master: Master, *, older_than_s: float | None) -> CollectReport:
    raise NotImplementedError
