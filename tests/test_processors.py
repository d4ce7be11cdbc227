"""How many processors may be used, by affinity and by quotas of cgroups as files show them."""

from __future__ import annotations

import os

import pytest

from mlfs.limits import usable_processors

V1 = "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs"


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, 16),
        ({"/proc/self/cgroup": "0::/a/b\n"}, 16),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 16),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 3),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/cpu.max": "400000 100000\n"}, 4),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
                "/sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            1,
        ),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/cpu.max": "6400000 100000\n"}, 16),
        ({"/proc/self/cgroup": "4:cpu,cpuacct:/job\n", f"{V1}_quota_us": "-1\n", f"{V1}_period_us": "100000\n"}, 16),
        ({"/proc/self/cgroup": "4:cpu,cpuacct:/job\n", f"{V1}_quota_us": "200000\n", f"{V1}_period_us": "100000\n"}, 2),
        ({"/proc/self/cgroup": "4:cpuset:/job\n", f"{V1}_quota_us": "200000\n", f"{V1}_period_us": "100000\n"}, 16),
    ],
)
def test_quotas_of_cgroups_count_beside_affinity(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], processors: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert usable_processors(files.get) == processors
