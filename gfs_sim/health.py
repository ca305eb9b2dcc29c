from gfs_sim.master import Master
from gfs_sim.values import Health


def check(master: Master, path: str, *, verify: bool) -> Health:
    raise NotImplementedError
