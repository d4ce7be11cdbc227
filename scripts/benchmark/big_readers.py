"""Large files as data sets' own libraries write and read them: the readers of `scripts/bench big`.

In: the name of a case, and a directory. Out: with `make`, its files; else one line of JSON: the seconds that reading
all of it took, and a digest of every sample, whatever order they came in; with `ahead`, threads read rows before him.
Run as a script, so that no library keeps anything from one round to the next. ImportError where a case's library is not
there: the bench leaves it out.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

MIB: Final = 1 << 20
ROW_BYTES: Final = 100_000
PIECE_BYTES: Final = 16 << 20
ROWS_SEED: Final = 8
LANES: Final = 16
REGISTERED: Final[dict[str, dict[str, Any]]] = {
    "registered rows": {"seed": ROWS_SEED, "sampler": "numpy", "layout": "npy", "epochs": 2, "batch_size": 8},
    "registered shards": {"layout": "sorted", "draw": "none", "worker_dealing": "parts", "num_workers": 2, "epochs": 2},
}
"""The cases whose order mlfs is told, and how."""
PORTION_BYTES: Final = 1 << 20
# nanoGPT's windows, and sequences of Megatron's.
WINDOWS: Final = {"windows": (600, 2048), "sequences": (1000, 4096)}

Make = Callable[[Path], None]
Read = Callable[[Path], Iterator[Any]]


def contents(seed: str, size_bytes: int) -> bytes:
    """Bytes that no compression makes fewer."""
    drawn = random.Random(seed)  # which gives 256 MiB at a time at most
    return b"".join(drawn.randbytes(min(PIECE_BYTES, size_bytes - at)) for at in range(0, size_bytes, PIECE_BYTES))


def raw(sizes_mib: tuple[float, ...]) -> Make:
    """Files of random bytes, which end somewhere within a page."""

    def make(directory: Path) -> None:
        for number, mib in enumerate(sizes_mib):
            with open(directory / f"{number}.bin", "wb") as file:
                for part in range(max(1, int(mib * share()))):
                    file.write(contents(f"{number} {part}", MIB))
                file.write(b"end")

    return make


def share() -> float:
    """The share of its size that everything has."""
    return float(os.environ.get("BIG_SHARE", "1"))


def paths(directory: Path) -> list[Path]:
    """The files of a directory."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def portions(path: Path) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while portion := file.read(PORTION_BYTES):
            yield portion


def front_to_back(directory: Path) -> Iterator[bytes]:
    """As `cat` reads them."""
    for path in paths(directory):
        yield from portions(path)


def _digest_of(directory: Path) -> int:
    return digest(front_to_back(directory))


def by_four(directory: Path) -> Iterator[bytes]:
    """Four processes read the same files front to back at once."""
    with ProcessPoolExecutor(4) as pool:
        for found in pool.map(_digest_of, [directory] * 4):
            yield str(found).encode()


def mapped(case: str) -> Read:
    """Small windows of mapped files, where a generator says."""
    count, size = WINDOWS[case]

    def read(directory: Path) -> Iterator[bytes]:
        draw = random.Random(1)
        for path in paths(directory):
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                for _ in range(count):
                    begin = draw.randrange(len(view) - size)
                    yield view[begin : begin + size]

    return read


def make_registered_rows(directory: Path) -> None:
    """An array of rows of 100 kB, saved by NumPy."""
    count = int(3000 * share())
    array = np.frombuffer(contents("registered", count * ROW_BYTES), dtype=np.uint8)
    np.save(directory / "rows.npy", array.reshape(count, ROW_BYTES))


def registered_rows(directory: Path) -> Iterator[bytes]:
    """Each row once, by pread, in the order that is registered."""
    path = directory / "rows.npy"
    fd = os.open(path, os.O_RDONLY)
    count, header = divmod(os.fstat(fd).st_size, ROW_BYTES)
    for row in np.random.default_rng(ROWS_SEED).permutation(count).tolist():
        yield os.pread(fd, ROW_BYTES, header + row * ROW_BYTES)
    os.close(fd)


def registered_rows_ahead(directory: Path) -> Iterator[bytes]:
    """The same, read by as many threads ahead of the reader as mlfs has lanes: the least that the source allows."""
    path = directory / "rows.npy"
    fd = os.open(path, os.O_RDONLY)
    count, header = divmod(os.fstat(fd).st_size, ROW_BYTES)
    begins = (header + np.random.default_rng(ROWS_SEED).permutation(count) * ROW_BYTES).tolist()
    with ThreadPoolExecutor(LANES) as pool:
        yield from pool.map(lambda begin: os.pread(fd, ROW_BYTES, begin), begins)
    os.close(fd)


def rows(directory: Path) -> Iterator[bytes]:
    """Each row of the files once, in a random order, by pread."""
    draw = random.Random(2)
    for path in paths(directory):
        fd = os.open(path, os.O_RDONLY)
        begins = list(range(0, os.fstat(fd).st_size, ROW_BYTES))
        draw.shuffle(begins)
        for begin in begins:
            yield os.pread(fd, ROW_BYTES, begin)
        os.close(fd)


# -- by libraries


def samples(seed: str, mib: float) -> Iterator[bytes]:
    """Samples of 20 to 200 kB."""
    draw, left = random.Random(seed), int(mib * share() * MIB)
    while left > 0:
        sample = draw.randbytes(draw.randrange(20_000, 200_000))
        left -= len(sample)
        yield sample


def make_mds(directory: Path) -> None:
    """Shards of 32 MB."""
    from streaming import MDSWriter

    with MDSWriter(out=str(directory), columns={"x": "bytes"}, size_limit=32_000_000) as out:
        for sample in samples("mds", 150):
            out.write({"x": sample})


def read_mds(directory: Path) -> Iterator[bytes]:
    """In a random order; the shard is opened for each sample."""
    from streaming.base.format import reader_from_json

    index = json.loads((directory / "index.json").read_text())
    readers = [reader_from_json(str(directory), None, shard) for shard in index["shards"]]
    order = [(shard, number) for shard, reader in enumerate(readers) for number in range(len(reader))]
    random.Random(3).shuffle(order)
    for shard, number in order:
        yield readers[shard][number]["x"]


def make_webdataset(directory: Path) -> None:
    """Eight archives."""
    import webdataset

    for shard in range(8):
        with webdataset.TarWriter(str(directory / f"{shard}.tar")) as out:
            for number, sample in enumerate(samples(f"tar {shard}", 20)):
                out.write({"__key__": f"{shard}-{number}", "bin": sample})


def read_webdataset(directory: Path) -> Iterator[bytes]:
    """By two workers."""
    import webdataset
    from torch.utils.data import DataLoader

    data = webdataset.WebDataset([str(path) for path in paths(directory)], shardshuffle=False)
    for sample in DataLoader(data, batch_size=None, num_workers=2):
        yield sample["bin"]


def hdf5(chunks: tuple[int, int] | None) -> Make:
    """One array of rows of 100 kB, in one piece or in chunks."""

    def make(directory: Path) -> None:
        import h5py

        with h5py.File(directory / "rows.h5", "w") as file:
            count = int(1500 * share())
            array = np.frombuffer(contents("hdf5", count * ROW_BYTES), dtype=np.uint8).reshape(count, ROW_BYTES)
            file.create_dataset("x", data=array, chunks=chunks)

    return make


def read_hdf5(directory: Path) -> Iterator[Any]:
    """Each row once, in a random order."""
    import h5py

    with h5py.File(directory / "rows.h5") as file:
        array = file["x"]
        for row in np.random.default_rng(4).permutation(len(array)):
            yield array[row]


def make_parquet(directory: Path) -> None:
    """Six files of row groups of some MB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number in range(6):
        table = pa.table({"x": pa.array(list(samples(f"parquet {number}", 25)), pa.binary())})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=32, compression="none")


def read_parquet(directory: Path) -> Iterator[bytes]:
    """Row groups of all files, in a random order."""
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(path) for path in paths(directory)]
    groups = [(at, group) for at, file in enumerate(files) for group in range(file.num_row_groups)]
    random.Random(5).shuffle(groups)
    for at, group in groups:
        yield from (value.as_py() for value in files[at].read_row_group(group).column("x"))


def stream_parquet(directory: Path) -> Iterator[bytes]:
    """The same files streamed by datasets."""
    import datasets

    files = [str(path) for path in paths(directory)]
    for sample in datasets.load_dataset("parquet", data_files=files, streaming=True, split="train"):
        yield sample["x"]


def make_arrow(directory: Path) -> None:
    """A data set saved by datasets."""
    import datasets

    made = datasets.Dataset.from_dict({"x": list(samples("arrow", 150))})
    made = made.cast(datasets.Features({"x": datasets.Value("large_binary")}))
    made.save_to_disk(str(directory), num_shards=4)


def read_arrow(directory: Path) -> Iterator[bytes]:
    """Mapped, in a random order."""
    import datasets

    for sample in datasets.load_from_disk(str(directory)).shuffle(seed=6):
        yield sample["x"]


def make_array_record(directory: Path) -> None:
    """One file of records."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for number in range(4):
        out = ArrayRecordWriter(str(directory / f"{number}.array_record"), "group_size:1,uncompressed")
        for sample in samples(f"record {number}", 35):
            out.write(sample)
        out.close()


def read_array_record(directory: Path) -> Iterator[bytes]:
    """In a random order."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource([str(path) for path in paths(directory)])
    order = list(range(len(source)))
    random.Random(7).shuffle(order)
    for number in order:
        yield source[number]


ONE: Final = raw((1024,))

CASES: dict[str, tuple[Make, Read, tuple[str, ...]]] = {
    "files": (raw((3, 5, 20, 65, 200)), front_to_back, ()),
    "one file 1 reader": (ONE, front_to_back, ()),
    "one file 4 readers": (ONE, by_four, ()),
    "rows": (raw((200,)), rows, ()),
    "registered shards": (make_webdataset, read_webdataset, ("webdataset", "torch.utils.data")),
    "registered rows": (make_registered_rows, registered_rows, ()),
    "windows": (raw((300,)), mapped("windows"), ()),
    "sequences": (raw((300,)), mapped("sequences"), ()),
    "MDS": (make_mds, read_mds, ("streaming.base.format",)),
    "WebDataset": (make_webdataset, read_webdataset, ("webdataset", "torch.utils.data")),
    "HDF5": (hdf5(None), read_hdf5, ("h5py",)),
    "HDF5 chunked": (hdf5((8, 12_500)), read_hdf5, ("h5py",)),
    "Parquet": (make_parquet, read_parquet, ("pyarrow.parquet",)),
    "Parquet streamed": (make_parquet, stream_parquet, ("datasets", "pyarrow.parquet")),
    "Arrow": (make_arrow, read_arrow, ("datasets",)),
    "array_record": (make_array_record, read_array_record, ("array_record.python.array_record_data_source",)),
}
"""By case: how its files are made and read, and the modules that this needs."""


def digest(found: Iterator[Any]) -> int:
    """A digest of samples that does not depend on their order."""
    return sum(xxhash.xxh3_64_intdigest(one) for one in found) % (1 << 64)


def main() -> None:
    """Make or read; see the module."""
    how, case, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    make, read, modules = CASES[case]
    for module in modules:
        importlib.import_module(module)  # before the time is taken
    if how == "make":
        directory.mkdir(parents=True)
        make(directory)
        return
    began_s = time.monotonic()
    found = digest(registered_rows_ahead(directory) if how == "ahead" else read(directory))
    print(json.dumps({"seconds": time.monotonic() - began_s, "digest": found}))


if __name__ == "__main__":
    main()
