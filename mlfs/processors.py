"""The processors that this process may use: those that it may run on, and what its cgroups allow, v1 and v2.

In: the affinity of the process; /proc and the files of the cgroups between the process and the root, any of which
binds. Out: a number, 1 at least. Called by `mlfs.lab.commands.advise` and `mountd.statistics`. The functions take the
contents of files, so that tests can give them any.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator

from mlfs.limits import ancestors, read_text

Read = Callable[[str], str | None]

# Where distributions and container runtimes mount the hierarchies; `unified` is v2 beside v1.
_V2_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_V1_ROOTS = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu")


def usable_processors(read: Read = read_text) -> int:
    """The processors that this process may run on, or fewer where a quota of its cgroups allows less time than theirs.

    A quota that is no whole number of processors is rounded up: so many processes can use all of it.
    """
    quotas = quotas_of(read("/proc/self/cgroup") or "", read)
    return max(1, min([len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in quotas)]))


def quotas_of(cgroup_text: str, read: Read = read_text) -> Iterator[float]:
    """Each quota that binds the process with this /proc/self/cgroup, in processors.

    Inside a container the path may be that of the host, of which only the root is visible under /sys/fs/cgroup: walking
    up to the root finds that too.
    """
    for line in cgroup_text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for directory in ancestors(path):
            if hierarchy == "0" and not controllers:
                texts = [read(f"{root}{directory}/cpu.max") or "" for root in _V2_ROOTS]
            elif "cpu" in controllers.split(","):
                texts = [
                    " ".join(read(f"{root}{directory}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
                    for root in _V1_ROOTS
                ]
            else:
                continue
            for text in texts:
                fields = text.split()
                # Without a quota v2 says "max", and v1 -1.
                if len(fields) == 2 and all(field.isdigit() and int(field) for field in fields):
                    yield int(fields[0]) / int(fields[1])
