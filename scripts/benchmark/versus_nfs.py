"""NFS with cachefilesd, as one of the ways of scripts/bench versus: what the client has read it keeps on a local disk.

The kernel's own server exports the slow source on the loopback address, and its client mounts that with `fsc`; a
cachefilesd of its own keeps its files below the way's directory. In: the source, a mount point, a directory. Out: the
mount while the context lasts; `why_not` says in words what this machine lacks for it. Called by
scripts/benchmark/versus.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo import end

ADDRESS, EXPORT_NUMBER = "127.0.0.1", 7101  # a file system without a device needs a number
DEVICE = Path("/dev/cachefiles")
THREADS = Path("/proc/fs/nfsd/threads")
CACHE_READY_S = 5.0


def why_not() -> str:
    """What this machine lacks, in words; nothing if it has all."""
    known = Path("/proc/filesystems").read_text().split()
    programs = {"cachefilesd": "cachefilesd", "mount.nfs4": "nfs-common", "exportfs": "nfs-kernel-server"}
    absent = sorted(package for program, package in programs.items() if not found(program))
    lacking = ["it needs root"] if os.geteuid() else []
    lacking += [] if "nfs4" in known else ["the kernel has no NFS client loaded"]
    lacking += [] if DEVICE.exists() else [f"it has no {DEVICE}"]
    lacking += [] if THREADS.exists() and THREADS.read_text().strip() != "0" else ["no NFS server runs"]
    lacking += [f"not installed: {' '.join(absent)}"] if absent else []
    return ", ".join(lacking)


def found(program: str) -> str | None:
    """Where a program is, those of the administrator among them."""
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextmanager
def mounted(source: Path, seen: Path, kept: Path) -> Iterator[int]:
    """The mount; yields the process that serves the cache. Raises: OSError, with what went wrong."""
    cache, settings, log = kept / "fscache", kept.parent / f"{kept.name}.conf", kept.parent / f"{kept.name}.log"
    cache.mkdir()
    # Everything that is read is kept, and nothing is given up while a tenth of the disk is free.
    settings.write_text(f"dir {cache}\ntag bench\nbrun 10%\nbcull 7%\nbstop 3%\nfrun 10%\nfcull 7%\nfstop 3%\n")
    with ExitStack() as stack:
        with open(log, "wb") as errors:
            words = [str(found("cachefilesd")), "-n", "-s", "-f", str(settings)]
            process = subprocess.Popen(words, stdout=errors, stderr=errors, text=True, start_new_session=True)
        stack.callback(end, process)
        until = time.monotonic() + CACHE_READY_S
        while not any(cache.iterdir()):  # its directories are there once the kernel has the cache
            if process.poll() is not None or time.monotonic() > until:
                raise OSError(f"cachefilesd did not start: {log.read_text(errors='replace').strip()}")
            time.sleep(0.01)
        export = f"{ADDRESS}:{source}"
        options = f"ro,insecure,no_subtree_check,no_root_squash,fsid={EXPORT_NUMBER}"
        run("exportfs", "-o", options, export)
        stack.callback(run, "exportfs", "-u", export)
        run("mount", "-t", "nfs4", "-o", "ro,fsc,vers=4.2", export, str(seen))
        stack.callback(run, "umount", "-l", str(seen))
        yield process.pid


def run(*words: str) -> None:
    """Run a command of the administrator. Raises: OSError with its last line."""
    done = subprocess.run([str(found(words[0])), *words[1:]], check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
        raise OSError(f"{words[0]}: {said}")
