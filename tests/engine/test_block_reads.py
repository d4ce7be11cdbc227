"""READs of files in blocks while another content takes the file's place: each gets bytes of its own generation."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import InlineRunner, Mount, given_job, read_large, running, shuffled, simulate, tree

from mlfs.engine.block_reads import WaitingRead
from mlfs.places.open_files import OpenFiles
from mlfs.places.place import SourcePlace, TierPlace
from mlfs.places.posix import PosixFile, PosixSource
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Tier
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import Waits
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import State
from mlfs.tree.attributes import attributes_of
from mlfs.tree.manifest import Manifest
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan

BLOCK = 4096
SIZE = 3 * BLOCK


def in_blocks(manifest: Manifest) -> Samples:
    """Blocks so small that a test's files have several."""
    return Samples.in_blocks(manifest, BLOCK, BLOCK)


def disk(directory: Path) -> list[tuple[PlaceKind, Tier, int]]:
    """A place whose copies a thread reads, as those in memory are read at once; it lies beside `data`."""
    (directory / "data").mkdir()
    return [(PlaceKind.SSD, SsdTier(directory / "disk", 1 << 20, "source"), 0)]


class LateRunner(InlineRunner):
    """A call is made at once, and its end is told when its time is over."""

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        seconds = self.seconds.get(pool, 0)
        result = call(*args)
        await trio.sleep(seconds)
        return result


def put(mount: Mount, entry: int, content: bytes) -> None:
    """Another file takes the name."""
    path = Path(os.fsdecode(mount.root) + "/" + os.fsdecode(mount.engine.manifest.path(entry)))
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").rename(path)


def test_a_block_that_was_fetched_before_a_change_answers_no_handle_of_after_it(tmp_path: Path) -> None:
    runner = LateRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, runner=runner, samples_of=in_blocks) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            old, new = mount.content(entry), b"n" * SIZE
            before = await ranges.open(entry)
            runner.seconds["demand"] = 1.0
            other_node = WaitingRead(mount.engine.samples.blocks_of(entry)[0], trio.current_time())
            other_node.is_peer = True
            mount.engine.driver.step(Waits(other_node))
            await trio.sleep(0.1)
            runner.seconds["demand"] = 0.0
            put(mount, entry, new)
            after = await ranges.open(entry)
            assert bytes(await read_large(ranges, after, 0, BLOCK)) == new[:BLOCK]
            assert other_node.brought is not None
            assert other_node.brought.data == old[:BLOCK]
            assert bytes(await read_large(ranges, before, 0, BLOCK)) == old[:BLOCK]
            ranges.close_large(before)
            ranges.close_large(after)

    simulate(body)


def test_what_a_file_has_grown_by_is_given_to_handles_of_that_content_alone_and_kept(tmp_path: Path) -> None:
    runner = LateRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, runner=runner, ram=1 << 20, samples_of=in_blocks) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            grown, new = b"g" * (SIZE + BLOCK), b"n" * (SIZE + BLOCK)
            put(mount, entry, grown)
            before = await ranges.open(entry)
            got: list[bytes] = []

            async def read() -> None:
                got.append(bytes(await read_large(ranges, before, SIZE, BLOCK)))

            async with trio.open_nursery() as nursery:
                runner.seconds["demand"] = 1.0
                nursery.start_soon(read)
                await trio.sleep(0.1)
                runner.seconds["demand"] = 0.0
                put(mount, entry, new)
                after = await ranges.open(entry)
            assert got == [grown[SIZE:]]
            for _ in range(2):
                read_bytes = mount.source.bytes_read
                assert bytes(await read_large(ranges, after, 0, SIZE + BLOCK)) == new
                await trio.sleep(1)
            assert mount.source.bytes_read == read_bytes
            ranges.close_large(before)
            ranges.close_large(after)

    simulate(body)


def test_a_file_that_grows_and_grows_is_read_right_and_what_it_was_is_not_served(tmp_path: Path) -> None:
    draw = random.Random(8)

    async def body() -> None:
        async with running(tmp_path, 2, SIZE, ram=1 << 22, samples_of=in_blocks) as mount:
            grows, other = mount.files
            size = SIZE
            for _ in range(12):
                size += draw.randrange(1, 3 * BLOCK)
                content = draw.randbytes(size)
                put(mount, grows, content)
                mount.engine.fetcher.open_shared(grows).close()  # a file that is kept is not looked at by each open
                for entry, right in ((grows, content), (other, mount.content(other))):
                    handle = await mount.engine.ranges.open(entry)
                    for _ in range(8):
                        begin, length = draw.randrange(size), draw.randrange(1, 2 * BLOCK)
                        got = bytes(await read_large(mount.engine.ranges, handle, begin, length))
                        assert got == right[begin : begin + length]
                    mount.engine.ranges.close_large(handle)
                    await trio.sleep(1)
            used_bytes = mount.engine.places.storing[0].used_bytes
            assert used_bytes <= size + SIZE + 2 * BLOCK  # no copy stays of what the file was

    simulate(body)


def test_a_handle_goes_on_though_the_source_refuses_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory above was closed to whom the daemon runs as."""
    runner = InlineRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, runner=runner, samples_of=in_blocks) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle = await ranges.open(entry)

            def refuse(*args: object) -> None:
                raise PermissionError(errno.EACCES, "refused")

            monkeypatch.setattr(mount.source, "attributes", refuse)
            monkeypatch.setattr("mlfs.places.posix.open_beneath", refuse)
            monkeypatch.setattr(mount.source, "now_s", lambda: 1e9)  # time to look at the name again
            assert bytes(await read_large(ranges, handle, 0, SIZE)) == mount.content(entry)
            ranges.close_large(handle)

    simulate(body)


@pytest.fixture
def one_file(tmp_path: Path) -> Iterator[tuple[Path, PosixSource, Samples]]:
    with tree(tmp_path, 1, SIZE) as fd:
        samples = in_blocks(scan(fd))
        (path,) = tmp_path.rglob("*.jpg")
        yield path, PosixSource(fd, samples.manifest), samples


def test_a_file_that_stays_open_is_not_taken_for_the_present_one_once_a_later_one_is_known(
    one_file: tuple[Path, PosixSource, Samples],
) -> None:
    """A look has found the later content, and nobody has opened it yet."""
    path, source, samples = one_file
    (entry,), place = samples.manifest.files.tolist(), SourcePlace(source, samples)
    block = samples.blocks_of(entry)[0]
    place.read(block)
    path.with_suffix(".new").write_bytes(b"n" * SIZE)
    path.with_suffix(".new").rename(path)
    now = attributes_of(path.stat())
    samples.manifest.update(entry, now.size, now.mtime_ns, now.ctime_ns)
    content = place.read(block)
    assert (bytes(content.data), content.changed) == (b"n" * BLOCK, None)
    assert place.read_range(block, 0, 10)[0] == b"n" * 10
    place.files.close()


def test_a_file_that_nobody_got_as_he_gave_up_is_closed_as_others_are(
    one_file: tuple[Path, PosixSource, Samples],
) -> None:
    _, source, samples = one_file
    (entry,), files = samples.manifest.files.tolist(), OpenFiles(source, most_unused=0)
    files.take(entry)  # and its result is dropped, as that of a call that took too long
    assert len(files) == 0
    opened = files.take(entry)
    assert len(files) == 1
    opened.close()
    opened.close()
    assert len(files) == 0


def test_no_descriptor_stays_of_a_content_that_is_gone(one_file: tuple[Path, PosixSource, Samples]) -> None:
    """Else the source could not free its bytes for as long as the mount lives."""
    path, source, samples = one_file
    (entry,), place = samples.manifest.files.tolist(), SourcePlace(source, samples)
    place.read(samples.blocks_of(entry)[0])
    place.files.drop_other(entry)
    assert len(place.files) == 1  # it is the present one
    path.with_suffix(".new").write_bytes(b"n" * SIZE)
    path.with_suffix(".new").rename(path)
    now = attributes_of(path.stat())
    samples.manifest.update(entry, now.size, now.mtime_ns, now.ctime_ns)
    place.files.drop_other(entry)
    assert len(place.files) == 0


def test_a_file_that_was_only_looked_at_is_opened_when_it_is_read_as_what_it_was(
    one_file: tuple[Path, PosixSource, Samples],
) -> None:
    path, source, samples = one_file
    (entry,), old = samples.manifest.files.tolist(), path.read_bytes()
    looked_at = [source.look_at(entry) for _ in range(3)]
    assert (source.open_count, source.bytes_read) == (0, 0)
    assert looked_at[0].seek(10, os.SEEK_DATA) == 10
    path.with_suffix(".new").write_bytes(b"n" * SIZE)
    path.with_suffix(".new").rename(path)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda offset: looked_at[1].read(offset, 100), range(4))) == [
            old[offset : offset + 100] for offset in range(4)
        ]
    assert source.open_count == 2
    assert looked_at[0].read(SIZE - 10, 100) == old[-10:]
    looked_at[2].close()
    with pytest.raises(OSError, match="closed"):
        looked_at[2].read(0, 1)
    for opened in looked_at:
        opened.close()


def test_a_file_that_was_only_looked_at_and_is_written_then_gives_no_byte(
    one_file: tuple[Path, PosixSource, Samples],
) -> None:
    path, source, samples = one_file
    (entry,), status = samples.manifest.files.tolist(), path.stat()
    opened = source.look_at(entry)
    with open(path, "r+b") as file:
        file.write(b"n" * SIZE)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(OSError) as error:  # noqa: PT011
        opened.read(0, 10)
    assert error.value.errno == errno.ESTALE
    opened.close()
    assert source.open_count == 0


def test_ranges_of_some_bytes_take_no_memory(one_file: tuple[Path, PosixSource, Samples]) -> None:
    path, source, samples = one_file
    (entry,), place = samples.manifest.files.tolist(), SourcePlace(source, samples)
    for offset in range(0, BLOCK, 2):
        assert place.read_range(samples.blocks_of(entry)[0], offset, 1)[0] == path.read_bytes()[offset : offset + 1]
    assert place.pieces.of(samples.blocks_of(entry)[0]) == 0
    place.files.close()


def test_reads_of_one_block_wait_together_for_a_source_that_hangs(tmp_path: Path) -> None:
    runner = InlineRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, runner=runner, ram=1 << 20, samples_of=in_blocks) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle = await ranges.open(entry)
            runner.hang = set(mount.engine.samples.blocks_of(entry))
            begun_s, errors = trio.current_time(), []

            async def read(offset: int) -> None:
                with pytest.raises(OSError) as error:  # noqa: PT011
                    await read_large(ranges, handle, offset, BLOCK - 10)
                errors.append(error.value.errno)

            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(read, number)
            assert errors == [errno.ETIMEDOUT] * 8
            assert trio.current_time() - begun_s <= 45
            ranges.close_large(handle)

    simulate(body)


def test_a_jobs_files_are_staged_by_blocks_and_their_blocks_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 6, SIZE, ram=1 << 20, samples_of=in_blocks) as mount:
            table, reads = mount.table, mount.engine.places.source.files
            await mount.engine.shared.register(*given_job(shuffled(mount.files, 2, 1), batch_size=1))
            await trio.sleep(1)
            blocks = [block for entry in mount.files for block in mount.engine.samples.blocks_of(entry)]
            assert {table.state[block] for block in blocks} == {State.STAGED}
            assert all(table.held_by[block] for block in blocks)
            assert not any(table.held_by[entry] for entry in mount.files)  # no place keeps them twice
            fetched_bytes = mount.engine.statistics().counters.all.fetches["pfs"].bytes
            assert fetched_bytes == len(mount.files) * SIZE
            mount.pages.there.clear()  # the kernel takes them back
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
            await trio.sleep(1)
            assert mount.engine.statistics().counters.all.fetches["pfs"].bytes == fetched_bytes
            assert len(reads) == len(mount.files)

    simulate(body)


def test_a_block_that_the_source_does_not_give_is_not_staged_and_costs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with running(tmp_path, 4, SIZE, ram=1 << 20, samples_of=in_blocks) as mount:
            broken = mount.engine.samples.blocks_of(mount.files[1])[1]
            read = SourcePlace.read

            def fail(place: SourcePlace, sample: int, close_later: bool = False) -> Any:
                if sample == broken:
                    raise OSError(errno.EIO, "broken")
                return read(place, sample, close_later)

            monkeypatch.setattr(SourcePlace, "read", fail)
            await mount.engine.shared.register(*given_job(shuffled(mount.files, 1, 1)))
            await trio.sleep(1)
            blocks = [block for entry in mount.files for block in mount.engine.samples.blocks_of(entry)]
            assert [block for block in blocks if mount.table.state[block] != State.STAGED] == [broken]
            assert mount.engine.scheduler.keeping.statistics().promised_bytes == 0
            monkeypatch.undo()
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
            await trio.sleep(1)
            assert mount.table.is_at_hand(mount.files[1])

    simulate(body)


@pytest.mark.parametrize("has_room", [True, False])
def test_small_ranges_cost_the_source_little_more_than_was_asked_for_until_most_was(
    tmp_path: Path, has_room: bool
) -> None:
    """Then the rest of the file comes once, and is kept, if there is room for it."""
    block_bytes, size, draw = 1 << 16, 1 << 24, random.Random(5)
    asked = bytearray(size)

    async def body() -> None:
        async with running(
            tmp_path, 1, size, ram=2 * size if has_room else size // 4,
            samples_of=lambda manifest: Samples.in_blocks(manifest, 1, block_bytes),
        ) as mount:  # fmt: skip
            (entry,), ranges = mount.files, mount.engine.ranges
            content, handle = mount.content(entry), await ranges.open(entry)
            before = mount.source.bytes_read

            async def read(times: int) -> None:
                for _ in range(times):
                    begin = draw.randrange(size - block_bytes // 4)
                    end = begin + block_bytes // 4
                    assert bytes(await read_large(ranges, handle, begin, end - begin)) == content[begin:end]
                    asked[begin:end] = bytes([1]) * (end - begin)

            await read(2 * size // block_bytes)
            await trio.sleep(1)
            assert asked.count(1) <= mount.source.bytes_read - before <= 1.1 * asked.count(1)
            await read(2 * size // block_bytes)
            await trio.sleep(1)
            held_by = [mount.table.held_by[block] for block in mount.engine.samples.blocks_of(entry)]
            assert all(held_by) == has_room
            if has_room:
                assert mount.source.bytes_read - before <= 1.001 * size  # ranges of some bytes are not remembered
            else:
                assert held_by.count(0) > len(held_by) // 2
            ranges.close_large(handle)

    simulate(body)


def test_two_reads_that_follow_each_other_by_chance_bring_no_block(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(
            tmp_path, 1, 1 << 23, ram=1 << 24, samples_of=lambda manifest: Samples.in_blocks(manifest, 1, 1 << 20)
        ) as mount:  # fmt: skip
            (entry,), ranges = mount.files, mount.engine.ranges
            handle, before = await ranges.open(entry), mount.source.bytes_read
            for window in range(2):
                await read_large(ranges, handle, (window << 17) + 100, 1 << 17)
            await trio.sleep(1)
            assert mount.source.bytes_read - before == 2 << 17
            await read_large(ranges, handle, (2 << 17) + 100, 1 << 17)
            await trio.sleep(1)
            assert mount.source.bytes_read - before >= 1 << 20  # he goes through the file
            ranges.close_large(handle)

    simulate(body)


def test_a_change_of_a_file_of_many_blocks_costs_no_look_at_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with running(tmp_path, 1, 1000 * BLOCK, ram=1 << 20, samples_of=in_blocks) as mount:
            (entry,), ranges, asked = mount.files, mount.engine.ranges, list[int]()
            handle, contains = await ranges.open(entry), TierPlace.contains
            old = mount.content(entry)
            assert bytes(await read_large(ranges, handle, 0, 3 * BLOCK)) == old[: 3 * BLOCK]
            await trio.sleep(1)
            assert mount.engine.places.storing[0].used_bytes == 3 * BLOCK

            def counted(place: TierPlace, sample: int) -> bool:
                asked.append(sample)
                return contains(place, sample)

            monkeypatch.setattr(TierPlace, "contains", counted)
            put(mount, entry, b"n" * 1000 * BLOCK)
            after = await ranges.open(entry)
            assert len(asked) <= 10
            assert mount.engine.places.storing[0].used_bytes == 0
            assert bytes(await read_large(ranges, after, 0, BLOCK)) == b"n" * BLOCK
            assert bytes(await read_large(ranges, handle, 0, BLOCK)) == old[:BLOCK]
            ranges.close_large(after)
            ranges.close_large(handle)

    simulate(body)


def test_bytes_that_are_on_their_way_are_not_read_a_second_time(tmp_path: Path) -> None:
    """Several readers want them, and one of them goes on: all of the block is fetched for him."""
    runner = LateRunner({"read": 0.05, "demand": 0.05})
    block_bytes = 1 << 20

    async def body() -> None:
        async with running(
            tmp_path, 1, 3 * block_bytes, runner=runner, ram=1 << 23,
            samples_of=lambda manifest: Samples.in_blocks(manifest, 1, block_bytes),
        ) as mount:  # fmt: skip
            (entry,), ranges = mount.files, mount.engine.ranges
            content, handle, before = mount.content(entry), await ranges.open(entry), mount.source.bytes_read

            async def read(begin: int, size: int) -> None:
                assert bytes(await read_large(ranges, handle, begin, size)) == content[begin : begin + size]

            async with trio.open_nursery() as nursery:
                for begin in (0, 100, 50_000, 100_000, 230_000, 231_000, 400_000):
                    nursery.start_soon(read, begin, 128 << 10)
                    await trio.sleep(0.01)
            await trio.sleep(1)
            assert mount.source.bytes_read - before <= 3 * block_bytes
            ranges.close_large(handle)

    simulate(body)


def test_a_range_that_hangs_keeps_those_who_want_its_bytes_waiting_for_a_second(tmp_path: Path) -> None:
    runner = InlineRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, runner=runner, ram=1 << 20, samples_of=in_blocks) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle, got = await ranges.open(entry), list[bytes]()
            runner.seconds["read"] = 5.0

            async def read() -> None:
                got.append(bytes(await read_large(ranges, handle, 0, 100)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await trio.sleep(0.1)
                runner.seconds["read"] = 0.0
                begun_s = trio.current_time()
                await read()
                assert trio.current_time() - begun_s <= 1.1
            assert got == [mount.content(entry)[:100]] * 2
            ranges.close_large(handle)

    simulate(body)


def test_a_range_that_fails_or_hangs_is_read_twice_and_says_so(tmp_path: Path) -> None:
    runner = InlineRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, runner=runner, samples_of=in_blocks, hedge_s=2, timeout_s=5) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle, right, errors = await ranges.open(entry), mount.content(entry), mount.engine.counters.errors
            reads, read = list[int](), PosixFile.read

            def fails(self: PosixFile, offset: int, size: int) -> bytes:
                reads.append(offset)
                if len(reads) % 3:
                    raise OSError(errno.EIO, "the source fails")
                return read(self, offset, size)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(PosixFile, "read", fails)
                with pytest.raises(OSError, match="the source fails"):
                    await read_large(ranges, handle, 100, 100)
                assert reads == [100, 100]
                assert bytes(await read_large(ranges, handle, 100, 100)) == right[100:200]
                reads[:] = [0, 0]  # the next one does not fail
                border = 2 * BLOCK - 50
                assert bytes(await read_large(ranges, handle, border, 100)) == right[border:][:100]
                assert reads == [0, 0, border]  # one for both blocks
            assert errors["source_retried"] == 1
            runner.seconds["read"], begun_s = 60.0, trio.current_time()
            with pytest.raises(OSError, match="did not answer within 5 s, twice"):
                await read_large(ranges, handle, 300, 100)
            assert trio.current_time() - begun_s == pytest.approx(7)
            assert errors["source_timeout"] == 2
            runner.seconds["read"] = 0.0
            assert bytes(await read_large(ranges, handle, 300, 100)) == right[300:400]
            ranges.close_large(handle)

    simulate(body)


def test_reads_of_a_block_that_its_place_has_lost_fetch_it_once(tmp_path: Path) -> None:
    """All of them ask the place at a time, and all learn that it has nothing."""
    runner = LateRunner()

    async def body() -> None:
        async with running(
            tmp_path / "data", 1, SIZE, runner=runner, disks=disk(tmp_path), samples_of=in_blocks
        ) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            block = mount.engine.samples.blocks_of(entry)[0]
            handle = await ranges.open(entry)
            mount.engine.driver.step(Waits(WaitingRead(block, trio.current_time())))
            await trio.sleep(1)
            assert mount.table.held_by[block]
            mount.engine.places.storing[1].drop(block)
            runner.seconds["held"] = runner.seconds["demand"] = 0.1
            got: list[bytes] = []

            async def read(offset: int) -> None:
                got.append(bytes(await read_large(ranges, handle, offset, 100)))

            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(read, 1000 * number)
            assert sorted(got) == sorted(mount.content(entry)[1000 * n : 1000 * n + 100] for n in range(4))
            ranges.close_large(handle)

    simulate(body)


def test_of_blocks_on_a_disk_of_this_node_few_are_put_ahead_and_but_for_their_first_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group ends soon, and what is read behind it is read and verified in vain. The kernel has all of a block
    ahead but its first page; the READ for that, of a handle of that content, is answered from memory."""
    step, get, got = 1 << 17, SsdTier.get, set[bytes]()

    async def body() -> None:
        async with running(
            tmp_path / "data", 1, 7 * step, disks=disk(tmp_path),
            samples_of=lambda manifest: Samples.in_blocks(manifest, 1, step // 2),
        ) as mount:  # fmt: skip
            (entry,), ranges = mount.files, mount.engine.ranges
            handle, blocks = await ranges.open(entry), mount.engine.samples.blocks_of(entry)
            for block in blocks:
                mount.engine.driver.step(Waits(WaitingRead(block, trio.current_time())))
            await trio.sleep(1)
            assert all(mount.table.held_by[block] for block in blocks)
            monkeypatch.setattr(SsdTier, "get", lambda tier, key, version: got.add(key) or get(tier, key, version))
            content = mount.content(entry)
            for number in range(3):
                data = await read_large(ranges, handle, number * step, step)
                assert data == content[number * step : (number + 1) * step]
                await trio.sleep(1)
            assert got == {mount.engine.samples.key(block) for block in blocks[:7]}
            got.clear()
            assert ranges.read_at_once(handle, 3 * step, 4096) == content[3 * step :][:4096]
            await trio.sleep(1)
            assert got == {mount.engine.samples.key(block) for block in blocks[7:9]}
            pages, a_block = mount.pages.there[entry], step // 2 // 4096
            ahead = [page for page in range(6 * a_block, 9 * a_block) if page % a_block]
            assert sorted(page for page in pages if page >= 6 * a_block) == ahead
            assert all(content[4096 * page :].startswith(data) for page, data in pages.items())
            put(mount, entry, bytes(len(content)))
            mount.engine.fetcher.open_shared(entry).close()  # it is noticed
            later = await ranges.open(entry)
            assert ranges.read_at_once(handle, 4 * step, 4096) is None
            assert bytes(await read_large(ranges, later, 4 * step, 4096)) == bytes(4096)
            ranges.close_large(later)
            ranges.close_large(handle)

    simulate(body)


def test_a_block_on_a_disk_of_this_node_is_read_once_for_all_and_comes_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four READs of it come together. Once the kernel has taken it back, it gets it again with the second READ."""
    get, got, runner = SsdTier.get, list[bytes](), LateRunner()
    monkeypatch.setattr(SsdTier, "get", lambda tier, key, version: got.append(key) or get(tier, key, version))

    async def body() -> None:
        async with running(
            tmp_path / "data", 1, SIZE, runner=runner, disks=disk(tmp_path), samples_of=in_blocks
        ) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle, block, content = (
                await ranges.open(entry),
                mount.engine.samples.blocks_of(entry)[1],
                mount.content(entry),
            )
            mount.engine.driver.step(Waits(WaitingRead(block, trio.current_time())))
            await trio.sleep(1)
            assert mount.table.held_by[block]
            runner.seconds["held"] = 0.1

            async def read(begin: int) -> None:
                assert bytes(await ranges.read_large(handle, begin, 100)) == content[begin : begin + 100]

            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(read, BLOCK + 1000 * number)
            await trio.sleep(1)
            assert got == [mount.engine.samples.key(block)]
            assert mount.pages.there[entry] == {1: content[BLOCK : 2 * BLOCK]}
            for pushes in (1, 2):
                await read(BLOCK + 2000)
                await trio.sleep(1)
                assert mount.pages.pushes == pushes
            ranges.close_large(handle)

    simulate(body)


def test_a_place_that_hangs_does_not_fail_the_read_of_a_range(tmp_path: Path) -> None:
    runner = InlineRunner()

    async def body() -> None:
        async with running(
            tmp_path / "data", 1, SIZE, runner=runner, disks=disk(tmp_path), samples_of=in_blocks
        ) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle = await ranges.open(entry)
            mount.engine.driver.step(Waits(WaitingRead(mount.engine.samples.blocks_of(entry)[0], trio.current_time())))
            await trio.sleep(1)
            runner.seconds["held"] = 1e6
            begun_s = trio.current_time()
            for offset in (0, 200):
                assert (
                    bytes(await read_large(ranges, handle, offset, 100)) == mount.content(entry)[offset : offset + 100]
                )
            assert trio.current_time() - begun_s <= mount.engine.limits.hedge_s  # it is not asked again for a while
            ranges.close_large(handle)

    simulate(body)


def test_a_place_that_is_passed_over_gives_no_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is slower than the source is not asked for a READ either."""
    runner, slow, where = InlineRunner(), list[int](), Scheduler.where
    monkeypatch.setattr(
        Scheduler, "where", lambda self, sample: (SOURCE, 2) if sample in slow else where(self, sample)
    )  # fmt: skip

    async def body() -> None:
        async with running(
            tmp_path / "data", 1, SIZE, runner=runner, disks=disk(tmp_path), samples_of=in_blocks
        ) as mount:
            (entry,), ranges = mount.files, mount.engine.ranges
            handle, block = await ranges.open(entry), mount.engine.samples.blocks_of(entry)[0]
            mount.engine.driver.step(Waits(WaitingRead(block, trio.current_time())))
            await trio.sleep(1)
            for _ in range(2):
                assert bytes(await read_large(ranges, handle, 0, 100)) == mount.content(entry)[:100]
                assert runner.calls.count("held") == 1
                slow.append(block)
            ranges.close_large(handle)

    simulate(body)


def test_what_was_read_before_a_block_is_staged_counts_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 6, SIZE, ram=1 << 20, samples_of=in_blocks) as mount:
            handle = await mount.engine.ranges.open(mount.files[0])
            await read_large(mount.engine.ranges, handle, 0, 1024)
            mount.engine.ranges.close_large(handle)
            await trio.sleep(1)
            await mount.engine.shared.register(*given_job(shuffled(mount.files, 1, 1)))
            await trio.sleep(1)
            told, all_bytes = mount.engine.statistics(), len(mount.files) * SIZE
            assert sum(told.jobs[0].pfs_bytes_by_epoch.values()) == all_bytes - 1024
            assert told.counters.all.fetches["pfs"].bytes == all_bytes

    simulate(body)


def test_a_read_of_a_block_that_is_being_dropped_does_not_wait_for_that(tmp_path: Path) -> None:
    """The dropper waits for the pages that the READ has locked."""
    runner, blocks = InlineRunner(), 100

    async def body() -> None:
        async with running(
            tmp_path, 1, blocks * BLOCK, staging=4 * blocks * BLOCK, runner=runner, samples_of=in_blocks
        ) as mount:
            (entry,), ranges, table = mount.files, mount.engine.ranges, mount.table
            await mount.engine.shared.register(*given_job([[[entry]]], batch_size=1))
            await trio.sleep(1)
            assert await mount.read(entry) == mount.content(entry)
            await trio.sleep(1)
            runner.seconds["drop"] = 1e6
            mount.drop_lingering()
            await trio.sleep(1)
            assert table.state[mount.engine.samples.blocks_of(entry)[10]] == State.GOING
            handle = await ranges.open(entry)
            with trio.fail_after(10):
                for offset in range(0, blocks * BLOCK, 32 * BLOCK):
                    got = bytes(await read_large(ranges, handle, offset, 32 * BLOCK))
                    assert got == mount.content(entry)[offset : offset + 32 * BLOCK]
            ranges.close_large(handle)

    simulate(body)


def test_of_a_block_that_its_file_has_no_more_no_page_is_dropped(tmp_path: Path) -> None:
    """A range of no bytes would be the whole file, which others read."""

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, samples_of=in_blocks) as mount:
            (entry,), dropped = mount.files, list[tuple[int, int]]()
            last = mount.engine.samples.blocks_of(entry)[2]
            put(mount, entry, b"n" * (2 * BLOCK))
            mount.engine.ranges.close_large(await mount.engine.ranges.open(entry))
            assert mount.engine.samples.length_of(last) == 0
            mount.pages.drop = lambda _, offset=0, size=0: dropped.append((offset, size))
            mount.engine.fetcher.drop((last, last - 1))
            assert dropped == [(BLOCK, BLOCK)]

    simulate(body)


async def read_ranges(mount: Mount, entry: int, blocks: list[int], size: int = 100) -> None:
    """A READ of each of these blocks; what mlfs does behind its back is over."""
    handle = await mount.engine.ranges.open(entry)
    content = mount.content(entry)
    for block in blocks:
        begin = block * BLOCK + 200
        assert bytes(await read_large(mount.engine.ranges, handle, begin, size)) == content[begin : begin + size]
        await trio.sleep(1)
    mount.engine.ranges.close_large(handle)


def test_the_second_read_of_a_block_of_this_node_brings_all_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.engine.ranges.HOT_BYTES", 0)  # or READs would have what was fetched a moment ago

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, ram=1 << 20, samples_of=in_blocks) as mount:
            (entry,) = mount.files
            await read_ranges(mount, entry, [0, 1, 2], BLOCK - 200)  # the source is asked; nearly all: they are kept
            assert mount.pages.pushes == 0
            await read_ranges(mount, entry, [0, 2])
            assert mount.pages.pushes == 0
            await read_ranges(mount, entry, [2])
            assert mount.pages.there[entry] == {2: mount.content(entry)[2 * BLOCK :]}
            await read_ranges(mount, entry, [2])  # the kernel has taken it back
            assert mount.pages.pushes == 1
            await read_ranges(mount, entry, [2])
            assert mount.pages.pushes == 2

    simulate(body)


def test_no_more_blocks_come_near_than_the_window_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfs.engine.ranges.HOT_BYTES", 0)  # or READs would have what was fetched a moment ago

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, ram=1 << 20, staging=2 * BLOCK, samples_of=in_blocks) as mount:
            (entry,) = mount.files
            await read_ranges(mount, entry, [0, 1, 2], BLOCK - 200)
            await read_ranges(mount, entry, [0, 1, 2] * 2)
            assert sorted(mount.pages.there[entry]) == [0, 1]
            await read_ranges(mount, entry, [0, 2])  # the kernel has taken back the first one
            assert sorted(mount.pages.there[entry]) == [0, 1, 2]

    simulate(body)


def test_a_block_that_changes_before_it_comes_near_is_not_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfs.engine.ranges.HOT_BYTES", 0)
    runner = InlineRunner()

    async def body() -> None:
        async with running(tmp_path, 1, SIZE, ram=1 << 20, runner=runner, samples_of=in_blocks) as mount:
            (entry,) = mount.files
            await read_ranges(mount, entry, [0, 1, 2], BLOCK - 200)
            await read_ranges(mount, entry, [1])
            runner.seconds["near"] = 10.0
            await read_ranges(mount, entry, [1])
            put(mount, entry, b"n" * SIZE)
            mount.engine.fetcher.open_shared(entry).close()
            await trio.sleep(20)
            assert mount.engine.manifest.generation_view[entry] == 1
            assert mount.pages.pushes == 0

    simulate(body)


@pytest.mark.parametrize("seed", range(2))
def test_a_read_that_is_answered_at_once_has_its_own_contents_bytes_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever lies in memory: copies come and go, files are replaced, grow, end early; handles of before read on."""
    draw = random.Random(seed)
    monkeypatch.setattr("mlfs.engine.ranges.HOT_BYTES", draw.choice([0, 2 * BLOCK, 1 << 20]))

    async def body() -> None:
        room = draw.choice([3 * BLOCK, 1 << 20])
        async with running(tmp_path, 2, SIZE, ram=room, samples_of=in_blocks) as mount:
            ranges, at_once, refused = mount.engine.ranges, 0, 0
            handles: list[tuple[int, bytes]] = []
            for step in range(300):
                entry = draw.choice(mount.files)
                if not step % 20:
                    if step:
                        put(mount, entry, draw.randbytes(draw.choice([SIZE, SIZE - 100, SIZE + BLOCK + 7])))
                        mount.engine.fetcher.open_shared(entry).close()  # it is noticed
                    handles += [(await ranges.open(one), mount.content(one)) for one in mount.files]
                if draw.random() < 0.1:
                    mount.engine.places.storing[0].drop(draw.choice(mount.engine.samples.blocks_of(entry)))
                handle, content = draw.choice(handles[-4:])
                offset = draw.randrange(len(content) + BLOCK)
                size = draw.choice([100, BLOCK, 3 * BLOCK, len(content)])
                data = ranges.read_at_once(handle, offset, size)
                if data is None:
                    data, refused = await read_large(ranges, handle, offset, size), refused + 1
                else:
                    at_once += 1
                assert bytes(data) == content[offset : offset + size]
                await trio.sleep(draw.choice([0, 1]))
            assert at_once > 30
            assert refused
            for handle, _ in handles:
                ranges.close_large(handle)

    simulate(body)
