"""DALI's readers of files and of records, in a pipeline on the CPU: what they read, with a buffer of one sample."""

from __future__ import annotations

import io
import itertools
import random
import struct
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oracles.case import Case

DISTRIBUTION = "nvidia-dali-cuda120"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Shards that divide and that don't; where many are asked for, one case with more samples than 16 bits count."""
    yield from (_case(draw, draw.randint(1, 60)) for _ in range(count // 2))
    yield from (_of_records(draw) for _ in range(count - 1 - count // 2))
    yield _case(draw, draw.randint(66_000, 70_000) if count > 100 else draw.randint(300, 600))


def _case(draw: random.Random, n: int) -> Case:
    job: dict[str, Any] = {"sampler": "dali", "world_size": draw.randint(1, min(4, n))}
    kind = draw.choice(("", "shuffle", "shuffle_after_epoch", "shuffle_after_epoch"))
    if kind:
        job[kind] = True
    if kind != "shuffle_after_epoch" and draw.random() < 0.4:
        job["stick_to_shard"] = True
    if kind == "shuffle_after_epoch" and draw.random() < 0.4:
        job["list_seed"] = draw.randrange(1 << 31)
    seed = draw.choice((None, draw.randint(0, 1 << 40)))  # it must not matter
    ranks = range(job["world_size"]) if n < 1000 else [draw.randrange(job["world_size"])]
    return Case(job, n, [read for rank in ranks for read in _epochs(_labels(n, job, rank, seed), n, job, rank)])


def _epochs(labels: Iterator[int], n: int, job: dict[str, Any], rank: int) -> Iterator[tuple[int, int, list[int]]]:
    """What a rank reads in each epoch."""
    for epoch in range(3):
        stays = job.get("stick_to_shard") or job.get("shuffle_after_epoch")
        shard = (rank if stays else rank + epoch) % job["world_size"]
        size = n * (shard + 1) // job["world_size"] - n * shard // job["world_size"]
        yield epoch, rank, [next(labels) for _ in range(size)]


def _labels(n: int, job: dict[str, Any], rank: int, seed: int | None) -> Iterator[int]:
    """The labels that one reader hands out, without end."""
    from nvidia.dali import fn, pipeline_def

    words = _words(job, rank) | {"random_shuffle": job.get("shuffle", False)}
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        file.flush()

        @pipeline_def(batch_size=1 if n < 1000 else 256, num_threads=1, device_id=None)
        def pipeline():
            files = [file.name] * n
            return fn.readers.file(
                files=files, labels=list(range(n)), **({} if seed is None else {"seed": seed}), **words,
            )[1]  # fmt: skip

        built = pipeline()
        built.build()
        while True:
            (labels,) = built.run()
            yield from (int(label) for label in labels.as_array().reshape(-1))


def _words(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """The arguments of a reader that do not say what is read."""
    words = {field: job.get(field, False) for field in ("shuffle_after_epoch", "stick_to_shard")}
    if "list_seed" in job:
        words["shuffle_after_epoch_seed"] = job["list_seed"]
    return words | {"initial_fill": 1, "num_shards": job["world_size"], "shard_id": rank}


# -- records: TFRecord with index files, and tar archives


def _of_records(draw: random.Random) -> Case:
    sizes = [draw.randint(1, 9) for _ in range(draw.randint(1, 7))]
    n, kind = sum(sizes), draw.choice(("", "stick_to_shard", "shuffle_after_epoch"))
    job: dict[str, Any] = {"sampler": "dali", "layout": draw.choice(("tfrecord", "tar"))}
    job["world_size"] = draw.randint(1, min(4, n))
    if kind:
        job[kind] = True
    if kind == "shuffle_after_epoch" and draw.random() < 0.5:
        job["list_seed"] = draw.randrange(1 << 31)
    reads = []
    for rank in range(job["world_size"]):
        with tempfile.TemporaryDirectory() as root:
            files = _archives(Path(root), sizes) if job["layout"] == "tar" else _records(Path(root), sizes)
            reads += list(_epochs(_numbers(files, job, rank), n, job, rank))
    return Case(job, n, reads, sizes)


def _numbers(files: list[Path], job: dict[str, Any], rank: int) -> Iterator[int]:
    """The numbers that the records hold, without end; the buffer is shuffled, which must not matter."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.tfrecord import FixedLenFeature, int64

    words = _words(job, rank) | {"random_shuffle": True}

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        paths = [str(file) for file in files]
        if job["layout"] == "tar":
            return fn.readers.webdataset(paths=paths, ext=["number"], dtypes=[types.INT32], **words)
        indices, features = [f"{path}.idx" for path in paths], {"number": FixedLenFeature([1], int64, -1)}
        return fn.readers.tfrecord(path=paths, index_path=indices, features=features, **words)["number"]

    built = pipeline()
    built.build()
    while True:
        yield int(built.run()[0].as_array().reshape(-1)[0])


def _archives(root: Path, sizes: list[int]) -> list[Path]:
    files, numbers = list[Path](), itertools.count()
    for at, size in enumerate(sizes):
        files.append(root / f"{at}.tar")
        with tarfile.open(files[-1], "w") as archive:
            for number in itertools.islice(numbers, size):
                member = tarfile.TarInfo(f"{number:04}.number")
                member.size = 4
                archive.addfile(member, io.BytesIO(struct.pack("<i", number)))
    return files


def _records(root: Path, sizes: list[int]) -> list[Path]:
    files, numbers = list[Path](), itertools.count()
    for at, size in enumerate(sizes):
        files.append(root / f"{at}.tfrecord")
        lines, content = list[str](), b""
        for example in map(_example, itertools.islice(numbers, size)):
            record = struct.pack("<QI", len(example), 0) + example + bytes(4)
            lines.append(f"{len(content)} {len(record)}\n")
            content += record
        files[-1].write_bytes(content)
        Path(f"{files[-1]}.idx").write_text("".join(lines))
    return files


def _example(number: int) -> bytes:
    """A tf.train.Example of one feature, "number"."""
    value = bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])
    feature = _field(3, _field(1, value))
    return _field(1, _field(1, _field(1, b"number") + _field(2, feature)))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content
