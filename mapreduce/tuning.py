"""Environment variables with which a worker process sorts and copies fastest on the machine at hand.

They must be set before the process starts, since numpy and the C library read them once.  None of them changes a result.

* One worker is one core: the pool or the threads of a graph are the parallelism, not those of a library.
* numpy's AVX-512 sort writes with a compress-store that is microcode on AMD Zen 4 (family 25): there the AVX2 sort
  is four times faster, so the AVX-512 one is switched off.
* Large buffers come and go with every block.  A C library that keeps freed memory saves the page faults, which cost more
  than the sort; Arrow is told to use the same allocator.  The memory limit is on the peak, which stays as it was.
  Huge pages for that memory save faults once more, and lookups of addresses when rows are gathered.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

_MARK = "MRDAG_TUNED"


def worker_environment() -> dict[str, str]:
    """Return the variables and their values; a variable that the user has set should win over ours."""
    chosen = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
        "MALLOC_TOP_PAD_": str(16 << 20),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # madvise; from glibc 2.35 on
    }
    if _compress_store_is_slow():
        # the group of features that holds the AVX-512 sort got another name in numpy 2.4
        major, minor = (int(part) for part in metadata.version("numpy").split(".")[:2])
        chosen["NPY_DISABLE_CPU_FEATURES"] = "X86_V4" if (major, minor) >= (2, 4) else "AVX512_SKX"
    return chosen


def _compress_store_is_slow() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            fields = dict(_field(line) for line in file.read(1 << 13).splitlines() if ":" in line)
    except OSError:
        return False
    flags = fields.get("flags", "").split()
    return (
        fields.get("vendor_id") == "AuthenticAMD" and fields.get("cpu family") == "25" and "avx512dq" in flags
    )


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def restart_tuned() -> None:
    """Start this process again with these variables, unless it has them: for one whose own threads do the work."""
    if _MARK not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**worker_environment(), **os.environ, _MARK: "1"})
