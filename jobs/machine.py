"""What measurements depend on: the machine that they are from."""

from __future__ import annotations

import os
import platform


def describe_machine() -> dict[str, str]:
    """Return processor, cores, memory and kernel of this machine in words."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    model = line.partition(":")[2].strip()
                    break
    except OSError:
        pass
    import psutil

    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 1e9:.1f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
    }
