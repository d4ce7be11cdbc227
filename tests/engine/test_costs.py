"""What a read costs in the interpreter: calls that the code of mlfs makes, counted, so that no machine's speed matters.

Each case reads through an engine with all its parts; the page cache and the threads are fakes. The calls of mlfs'
functions are counted, and those that they make of builtins; what trio and the tests call is left out. A figure above
its bound in COSTS fails: then what was added must be worth it to everybody who reads, and the bound goes up with a
reason, or it must be computed from batches, seldom, or when somebody asks.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest
import trio
from fakes import Mount, running, simulate

from mlfs.explain.explainer import Explainer
from mlfs.explain.inference import Build
from mlfs.job import JobSpec, parse_job
from mlfs.orders.layouts import samples
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.tree.manifest import Manifest
from mountd import wire
from mountd.handlers import Handlers
from mountd.inodes import inode_of
from mountd.poll_wait import PollWait
from mountd.requests import Requests

ROOT = str(Path(__file__).resolve().parents[2])
OURS = (f"{ROOT}/mlfs/", f"{ROOT}/mountd/")
FILES, BATCH = 600, 25
READER, OTHER = 100, 200
"""Two processes of one parent (see `fakes.kin`)."""

COSTS = {
    "an open and a close by the kernel, staged": (110, "requests and replies, and what the next case has"),
    "a staged read that no job follows": (58, "two events of the digest, what comes next is learned"),
    "a staged read of a registered job": (116, "the same, matched to its rank; the next use is looked at"),
    "a staged read of a job that was found": (176, "the same, and whether it still comes as found"),
    "a demand read that no job follows": (398, "a ticket, a fetch by a worker, a push, a copy to keep"),
    "a sample that is fetched ahead": (218, "a look, a lane's turn, a fetch, a push, a copy to keep"),
}
"""The most calls for each, a tenth above what they were when the bound was set, and what they are for."""


class Calls:
    """A counter of calls."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while the context lasts."""

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event in ("call", "c_call") and frame.f_code.co_filename.startswith(OURS):
                self.count += 1

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)


async def read(mount: Mount, entries: list[int], pids: tuple[int, ...] = (READER,)) -> None:
    """Readers that take turns; the digest gets a batch of each few."""
    for at, entry in enumerate(entries):
        await mount.open(entry, pids[at % len(pids)])
        mount.engine.digest.released(entry)
        if at % BATCH == BATCH - 1:
            await trio.sleep(0.02)
    await trio.sleep(0.1)


async def staged(mount: Mount) -> None:
    """Have all files in place."""
    await read(mount, mount.files)
    assert all(mount.pages.resident(entry) for entry in mount.files)


async def by_kernel(directory: Path, calls: Calls) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        nothing = cast(Any, SimpleNamespace(missed=None, looking=None, thread=None))
        handlers = Handlers(mount.engine, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
        ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, kernels:
            requests = Requests(handlers, PollWait(), 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(requests.serve, ours.fileno())
                kernel = trio.socket.from_stdlib_socket(kernels)

                async def ask(kind: int, inode: int, word: int) -> bytes:
                    head = struct.pack("<IIQQIIIHHQ", 64, kind, 2, inode, 0, 0, READER, 0, 0, word) + bytes(16)
                    await kernel.send(head)
                    answer = await kernel.recv(4096)
                    assert struct.unpack_from("<i", answer, 4) == (0,)
                    return answer[16:]

                entries = mount.files[::7]
                with calls.counted():
                    for entry in entries:
                        opened = await ask(wire.OPEN, inode_of(entry), os.O_RDONLY)
                        await ask(wire.RELEASE, inode_of(entry), *struct.unpack_from("<Q", opened))
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        assert requests.counts["open"] == requests.counts["release"] == len(entries)
        return len(entries)


async def unfollowed(directory: Path, calls: Calls) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        with calls.counted():
            await read(mount, mount.files[::7] + mount.files[1::7], (READER, OTHER))
        return len(mount.files[::7] + mount.files[1::7])


async def registered(directory: Path, calls: Calls) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        await staged(mount)
        spec, streams = job(mount.engine.manifest)
        await mount.engine.register(spec, streams)
        await read(mount, streams.epoch_ids(0, 0).tolist())
        with calls.counted():
            await read(mount, streams.epoch_ids(1, 0).tolist())
        assert mount.engine.jobs[spec.name].score.agreement == 1.0
        return FILES


async def found(directory: Path, calls: Calls) -> int:
    manifests: list[Manifest] = []
    build = Build(
        lambda spec: samples(spec, manifests[0], os.fsencode(directory)),
        lambda spec: build_streams(spec, manifests[0]),
    )
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30, explainer=Explainer(build)) as mount:
        manifests.append(mount.engine.manifest)
        await staged(mount)
        await read(mount, mount.files)
        assert [one.inferred for one in mount.engine.jobs.values()] == [True]
        with calls.counted():
            await read(mount, mount.files)
        assert [one.score.agreement for one in mount.engine.jobs.values()] == [1.0]
        return FILES


async def on_demand(directory: Path, calls: Calls) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        entries = mount.files[::7] + mount.files[3::7]
        with calls.counted():
            await read(mount, entries)
        assert mount.source.read == entries
        return len(entries)


async def ahead(directory: Path, calls: Calls) -> int:
    async with running(directory, FILES, staging=1 << 30, ram=1 << 30) as mount:
        with calls.counted():
            await mount.engine.register(*job(mount.engine.manifest))
            await trio.sleep(10)
        assert all(mount.pages.resident(entry) for entry in mount.files)
        return FILES


def job(manifest: Manifest) -> tuple[JobSpec, JobStreams]:
    """A job of one process that reads each file once an epoch."""
    spec = parse_job({"seed": 3, "epochs": 4, "batch_size": BATCH})
    return spec, build_streams(spec, manifest)


CASES = dict(zip(COSTS, (by_kernel, unfollowed, registered, found, on_demand, ahead), strict=True))


@pytest.mark.parametrize("name", COSTS)
def test_no_read_costs_more_calls_than_it_did(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    calls, reads = Calls(), 0

    async def body() -> None:
        nonlocal reads
        reads = await CASES[name](tmp_path, calls)

    simulate(body)
    bound, reason = COSTS[name]
    each = calls.count / reads
    record_property("cost", f"{each:6.1f} of at most {bound:3d} calls: {name} ({reason})")
    assert each <= bound
