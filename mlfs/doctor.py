"""The checks of a machine: each says what is right, or what it costs and how to mend it.

Pure: all that is known of the machine comes from the object that is passed in (mlfs.doctor.Machine). Out:
`CheckResult`s, in the order in which a person reads them. Called by `mlfs.cli.doctor`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from mlfs.limits import cgroup_limit_bytes, memory_limit_bytes, read_text
from mlfs.units import format_size

# Opened files of a busy mount: descriptors of large files that readers hold, of the source's directories, of lanes.
FEW_OPEN_FILES = 1024
LITTLE_MEMORY_BYTES = 1 << 30
LITTLE_SPACE_BYTES = 10 << 30
# Earlier kernels lack pidfd_open and close_range, which ending a daemon safely and starting a clean one need.
OLDEST_KERNEL = (5, 9)
# Earlier ones do not give requests again: a mount has the first 1,280 bytes of each (mountd.left_behind).
RESENDING_KERNEL = (6, 9)
# Earlier ones tell nothing of the files of a FUSE mount (mountd.silent).
TELLING_KERNEL = (6, 8)
NETWORK = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "9p", "glusterfs", "orangefs"})
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_NOBODY_WATCHES_S = 5.0  # clocks of a network differ by less where they are kept right


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    COSTS = "costs"
    """mlfs works, and something is slower or missing."""
    STOPS = "stops"
    """mlfs cannot mount."""


class CheckResult(NamedTuple):
    """The result of one check.

    Attributes:
        what: what was looked at. said: what is so, and what that costs. way_out: how to mend it; empty if nothing is to
            be mended.
    """

    what: str
    level: Level
    said: str
    way_out: str = ""


def _fine(what: str, said: str) -> CheckResult:
    return CheckResult(what, Level.OK, said)


def _costs(what: str, said: str, way_out: str) -> CheckResult:
    return CheckResult(what, Level.COSTS, said, way_out)


def _stops(what: str, said: str, way_out: str) -> CheckResult:
    return CheckResult(what, Level.STOPS, said, way_out)


class SourceMount(NamedTuple):
    """The mount that a source lies in: its type and options, as /proc/self/mountinfo names them."""

    fstype: str
    options: frozenset[str]


def findings(machine: Machine, directories: Sequence[str]) -> Iterator[CheckResult]:
    """All that can be found without a source; `directories` are for caches."""
    yield kernel(machine)
    yield from fuse(machine)
    yield silent_channel(machine)
    yield from limits(machine)
    yield memory(machine)
    yield reclaim(machine)
    for directory in directories:
        yield cache_directory(machine, directory)
    yield clock(machine)
    yield from extras(machine)


def kernel(machine: Machine) -> CheckResult:
    """The kernel's version."""
    release = machine.kernel()
    if _version(release) < OLDEST_KERNEL:
        return _stops("kernel", f"{release} is too old", "mlfs needs Linux 5.9 or later")
    if _version(release) < RESENDING_KERNEL:
        return _fine("kernel", f"{release}: below 6.9 a long command fails that is under way when a server dies")
    return _fine("kernel", release)


def _version(release: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found is not None else TELLING_KERNEL


def fuse(machine: Machine) -> Iterator[CheckResult]:
    """The device, the helper program, and whether users may share their mounts."""
    container = "in a container: start it with --device /dev/fuse --cap-add SYS_ADMIN"
    if not machine.exists("/dev/fuse"):
        yield _stops("FUSE", "there is no /dev/fuse", f"modprobe fuse; {container}")
    elif not machine.is_openable("/dev/fuse"):
        yield _stops("FUSE", "/dev/fuse cannot be opened", f"as root: chmod 666 /dev/fuse; {container}")
    elif machine.program("fusermount3") is None:
        yield _stops("FUSE", "fusermount3 is not installed", "apt install fuse3")
    else:
        yield _fine("FUSE", "/dev/fuse and fusermount3 are there")
    shares = any(line.strip() == "user_allow_other" for line in (machine.read("/etc/fuse.conf") or "").splitlines())
    if machine.is_root or shares:
        yield _fine("--allow-other", "this user may show a mount to others")
    else:
        yield _costs(
            "--allow-other",
            "only this user will see into a mount",
            "as root add the line user_allow_other to /etc/fuse.conf",
        )


def silent_channel(machine: Machine) -> CheckResult:
    """The needs of `mlfs mount --channel silent`. Nobody has to have it, so it is never wrong."""
    if _version(machine.kernel()) < TELLING_KERNEL:
        said = "it needs Linux 6.8: such a mount uses the open one"
    elif machine.is_root:
        said = "staged files can be read without a request"
    else:
        said = "staged files can be read without a request, but only root is told by whom: no order is inferred then"
    return _fine("--channel silent", said)


def limits(machine: Machine) -> Iterator[CheckResult]:
    """Limits of a process: open files, address space, threads."""
    soft, hard = machine.open_files()
    most = "any number of" if hard < 0 else f"{hard:,}"
    if 0 <= hard < FEW_OPEN_FILES:
        yield _costs(
            "open files",
            f"at most {most}: readers of many large files at once wait for each other",
            "raise `ulimit -n` (LimitNOFILE= in a systemd unit)",
        )
    else:
        yield _fine("open files", f"{soft:,} now, {most} at most")
    space = machine.address_space_bytes()
    if space >= 0:
        yield _costs(
            "address space",
            f"limited to {format_size(space)}: an LMDB cache and large files map more than they use",
            "ulimit -v unlimited",
        )
    pids = [text.strip() for path in ("/sys/fs/cgroup/pids.max",) if (text := machine.read(path))]
    if pids and pids[0].isdigit():
        few = int(pids[0]) < 64
        yield CheckResult(
            "threads",
            Level.COSTS if few else Level.OK,
            f"{int(pids[0]):,} in this cgroup" + (": fewer lanes read the source at once" if few else ""),
            "raise pids.max (TasksMax= in a systemd unit)" if few else "",
        )


def memory(machine: Machine) -> CheckResult:
    """How much memory there is for the staging window, the RAM class and the daemon."""
    usable, of_cgroup = machine.memory()
    where = " (the cgroup's limit)" if of_cgroup is not None and of_cgroup <= usable else ""
    if usable < LITTLE_MEMORY_BYTES:
        return _costs(
            "memory",
            f"{format_size(usable)}{where}: little can be staged ahead",
            "raise the limit, or give a smaller --staging and --ram 0",
        )
    return _fine("memory", f"{format_size(usable)}{where}")


def reclaim(machine: Machine) -> CheckResult:
    """Whether something takes page cache back before it is needed: DAMON's proactive reclaim."""
    enabled = (machine.read("/sys/module/damon_reclaim/parameters/enabled") or "").strip()
    monitors = (machine.read("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds") or "").strip()
    if enabled in ("Y", "1") or (monitors.isdigit() and int(monitors) > 0):
        return _costs(
            "reclaim",
            "DAMON watches this machine's memory and may take staged pages back: some are staged twice",
            "as root: echo N > /sys/module/damon_reclaim/parameters/enabled",
        )
    return _fine("reclaim", "nothing takes pages back early")


def cache_directory(machine: Machine, directory: str) -> CheckResult:
    """A directory for --ssd or --lmdb."""
    what, free = f"cache {directory}", machine.free_bytes(directory)
    if free is None:
        return _costs(what, "is not there", f"mkdir -p {directory}")
    if not machine.is_writable(directory):
        return _costs(what, "cannot be written by this user", "give another directory, or chmod it")
    if free < LITTLE_SPACE_BYTES:
        return _costs(what, f"only {format_size(free)} are free", "free some space there")
    return _fine(what, f"{format_size(free)} are free")


def clock(machine: Machine) -> CheckResult:
    """Whether the clock is kept right. A file's modification time tells its versions apart, so nodes must agree."""
    kept = machine.clock_is_set()
    if kept is False:
        return _costs(
            "clock",
            "nothing keeps it right: times in logs of several nodes do not fit together",
            "start an NTP client: apt install chrony",
        )
    return _fine("clock", "is kept right" if kept else "the kernel does not say whether it is kept right")


def extras(machine: Machine) -> Iterator[CheckResult]:
    """Libraries that mlfs does without, and what they add."""
    if machine.has_module("numba"):
        yield _fine("numba", "is there: orders of unregistered jobs are searched at full speed")
    else:
        yield _costs(
            "numba",
            "is not there: the search for an unregistered job's order takes eight times as long",
            "pip install 'mlfs[fast]'",
        )
    launcher = machine.program("mpiexec") or machine.program("mpirun")
    if not machine.has_module("mpi4py"):
        yield _costs(
            "MPI",
            "mpi4py is not there: this node cannot share its cache with others (mlfs peers)",
            "pip install 'mlfs[mpi]', with an MPI library of the cluster or a wheel (mpich)",
        )
    elif launcher is None and machine.program("srun") is None:
        yield _costs("MPI", "there is no mpiexec and no srun to start mlfs peers", "pip install mpich")
    else:
        yield _fine("MPI", f"mpi4py is there, and {launcher or machine.program('srun')}")


def source(path: str, mount: SourceMount | None, newest_s: float | None, now_s: float) -> Iterator[CheckResult]:
    """The data set's file system.

    Args:
        mount: where it lies, None where that is not known. newest_s: when the source's directory was changed last by
            the clock of its server; None where it cannot be read. now_s: this machine's clock.
    """
    what = f"source {path}"
    if newest_s is None:
        yield _stops(what, "cannot be read", "see whether its file system is mounted, and your rights")
        return
    if mount is None:
        yield _fine(what, "can be read")
    elif mount.fstype in IN_MEMORY:
        yield _costs(what, f"is in memory ({mount.fstype}): mlfs cannot make it faster", "read it without mlfs")
    elif mount.fstype in NETWORK:
        yield _fine(what, f"is on a network file system ({mount.fstype})")
        if "sync" in mount.options or "noac" in mount.options:
            slow = "noac" if "noac" in mount.options else "sync"
            yield _costs(what, f"is mounted with {slow}: each look at a file asks the server", f"mount without {slow}")
    elif mount.fstype == "fuse" or mount.fstype.startswith("fuse."):
        # A file system of the network (sshfs, goofys, rclone, JuiceFS) or of this machine (bindfs, mergerfs).
        yield _fine(what, f"is on a FUSE file system ({mount.fstype}), which does not say where its data lies")
    else:
        yield _fine(what, f"is on a local file system ({mount.fstype})")
    if mount is not None and not mount.options & {"noatime", "relatime", "ro"}:
        yield _costs(what, "is mounted with atime: each read writes a time stamp", "mount with noatime")
    if newest_s > now_s + _NOBODY_WATCHES_S:
        ahead = newest_s - now_s
        yield _costs(
            what,
            f"was changed {ahead:,.0f} s in the future: its server's clock and this one differ",
            "keep both clocks right with NTP",
        )


# -- a machine's own words: files below /proc, /sys and /etc, programs, limits, free space
#
# In: the running system. Out: texts and numbers, of which the checks say what they mean. A test gives the checks
# another object of this shape.

_STA_UNSYNC = 0x40
_TIMEX_BYTES = 208  # sizeof(struct timex)
_TIMEX_STATUS = 40  # offset of its field status, an int


class Machine:
    """The files, programs and limits of this machine. A thing that it does not have is None, empty or False."""

    is_root = property(lambda _self: os.geteuid() == 0)

    def read(self, path: str) -> str | None:
        """The content of a file."""
        return read_text(path)

    def is_openable(self, path: str) -> bool:
        """Whether this user can open a device to read and write."""
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            return False
        return True

    def exists(self, path: str) -> bool:
        """Whether something lies there."""
        return os.path.exists(path)

    def program(self, name: str) -> str | None:
        return shutil.which(name)

    def has_module(self, name: str) -> bool:
        """Whether a Python module can be imported."""
        return importlib.util.find_spec(name) is not None

    def kernel(self) -> str:
        """The kernel's release, as `uname -r`."""
        return os.uname().release

    def open_files(self) -> tuple[int, int]:
        """How many files a process of this user may have open: now, and at most. -1 is no limit."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def address_space_bytes(self) -> int:
        """How much memory a process of this user may map; -1 is no limit."""
        return resource.getrlimit(resource.RLIMIT_AS)[0]

    def memory(self) -> tuple[int, int | None]:
        """Memory that may be used, in bytes, and the limit of the cgroup if it has one."""
        return memory_limit_bytes(), cgroup_limit_bytes(self.read("/proc/self/cgroup") or "")

    def free_bytes(self, directory: str) -> int | None:
        """Bytes that this user can still write to a directory's file system."""
        try:
            room = os.statvfs(directory)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize

    def is_writable(self, directory: str) -> bool:
        """Whether this user can make files in a directory."""
        return os.access(directory, os.W_OK | os.X_OK)

    def clock_is_set(self) -> bool | None:
        """Whether something keeps the clock right (NTP); None where the kernel does not say."""
        timex = ctypes.create_string_buffer(_TIMEX_BYTES)
        try:
            known = ctypes.CDLL(None).adjtimex(timex)
        except (OSError, AttributeError):
            return None
        status = int.from_bytes(timex.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], "little")
        return None if known < 0 else not status & _STA_UNSYNC

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()
