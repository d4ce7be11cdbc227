"""The layouts of rows: which range of which file each dataset index is."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from orders_support import job, manifest_of
from support.beton import write_beton

from mlfs.errors import JobError
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.tree.manifest import Manifest
from mlfs.tree.source_files import SourceFiles

ROW = 10_000


def streams_of(source: Path, **fields: object) -> tuple[JobStreams, Manifest]:
    tree = manifest_of(source)
    return build_streams(job(**fields), tree, os.fsencode(source), SourceFiles(os.fsencode(source))), tree


def ranges(tree: Manifest, ids: np.ndarray) -> list[tuple[bytes, int, int]]:
    files, offsets, lengths = tree.rows.columns(ids)
    return [(tree.path(f), o, n) for f, o, n in zip(files.tolist(), offsets.tolist(), lengths.tolist(), strict=True)]


def test_rows_of_npy_are_those_that_numpy_reads(tmp_path: Path) -> None:
    arrays = [
        np.arange(5 * 2500, dtype=np.float32).reshape(5, 50, 50),
        np.arange(3 * ROW, dtype=np.uint8).reshape(3, -1),
    ]
    for name, array in zip("ab", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    streams, tree = streams_of(tmp_path, layout="npy", sampler="sequential", epochs=1)
    found = ranges(tree, streams.epoch_ids(0, 0))
    rows = [row.tobytes() for array in arrays for row in array]
    assert [(tmp_path / path.decode()).read_bytes()[o : o + n] for path, o, n in found] == rows
    one, tree = streams_of(tmp_path, layout="npy", root="b.npy", sampler="sequential", epochs=1)
    assert ranges(tree, one.epoch_ids(0, 0)) == found[5:]


def test_raw_rows_have_one_length_behind_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(16 + 3 * ROW + 5))
    streams, tree = streams_of(
        tmp_path, layout="raw", root="a.bin", row_bytes=ROW, header_bytes=16, sampler="sequential", epochs=1
    )
    assert ranges(tree, streams.epoch_ids(0, 0)) == [(b"a.bin", 16 + n * ROW, ROW) for n in range(3)]


def test_ranges_are_the_lines_of_a_file_and_shuffled_as_indices(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.tar").write_bytes(bytes(100_000))
    lines = [(b"x.tar", at, ROW) for at in (512, 50_000, 20_000, 0)]
    (tmp_path / "ranges").write_bytes(b"".join(b"%b\t%d\t%d\n" % line for line in lines))
    fields = {"layout": "ranges", "manifest_file": str(tmp_path / "ranges"), "seed": 3, "epochs": 2}
    streams, tree = streams_of(tmp_path / "source", **fields)
    for epoch in range(2):
        indices = streams.dataset_indices(epoch, 0)
        assert ranges(tree, streams.epoch_ids(epoch, 0)) == [lines[index] for index in indices]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"x.tar\t0", "line 1"),
        (b"y.tar\t0\t9000", "line 1"),
        (b"x.tar\t-1\t9000", "line 1"),
        (b"x.tar\t99000\t9000", "row 0 is 9000 bytes from 99000 on"),
    ],
)
def test_what_is_no_row_is_refused(tmp_path: Path, line: bytes, said: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x.tar").write_bytes(bytes(100_000))
    (tmp_path / "ranges").write_bytes(line + b"\n")
    with pytest.raises(JobError, match=said):
        streams_of(tmp_path / "source", layout="ranges", manifest_file=str(tmp_path / "ranges"))


def test_arrays_whose_rows_do_not_lie_together_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(np.zeros((300, 300))))
    with pytest.raises(JobError, match="do not lie one behind the other"):
        streams_of(tmp_path, layout="npy")
    (tmp_path / "a.npy").write_bytes(b"no array at all")
    with pytest.raises(JobError, match=r"a\.npy"):
        streams_of(tmp_path, layout="npy")
    (tmp_path / "a.npy").unlink()
    with pytest.raises(JobError, match="no row"):
        streams_of(tmp_path, layout="npy")


def contents(source: Path, tree: Manifest, ids: np.ndarray) -> list[bytes]:
    return [(source / os.fsdecode(path)).read_bytes()[o : o + n] for path, o, n in ranges(tree, ids)]


def samples(count: int) -> list[bytes]:
    return [bytes([65 + n]) * (9000 + 137 * n) for n in range(count)]


def test_records_of_tfrecord_have_their_frames(tmp_path: Path) -> None:
    for name, of_file in (("b", samples(3)), ("a", samples(2))):
        records = (struct.pack("<QI", len(one), 1) + one + struct.pack("<I", 2) for one in of_file)
        (tmp_path / f"{name}.tfrecord").write_bytes(b"".join(records))
    streams, tree = streams_of(tmp_path, layout="tfrecord", sampler="sequential", epochs=1)
    assert [one[12:-4] for one in contents(tmp_path, tree, streams.epoch_ids(0, 0))] == [*samples(2), *samples(3)]
    (tmp_path / "a.tfrecord").write_bytes(struct.pack("<QI", 5, 1))
    with pytest.raises(JobError, match=r"row 0 is 21 bytes|a\.tfrecord"):
        streams_of(tmp_path, layout="tfrecord")


def test_members_of_a_tar_with_one_key_are_one_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for number, one in enumerate(samples(4)):
            for ending, data in (("seg.png", one), ("cls", b"7")):
                member = tarfile.TarInfo(f"./dir.d/{number}{'x' * 150 * (number == 2)}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    streams, tree = streams_of(tmp_path, layout="tar", root="a.tar", sampler="sequential", epochs=1)
    found = contents(tmp_path, tree, streams.epoch_ids(0, 0))
    for part, one in zip(found, samples(4), strict=True):
        with tarfile.open(fileobj=io.BytesIO(part + bytes(1024))) as archive:
            read = [archive.extractfile(member).read() for member in archive]  # type: ignore[union-attr]
        assert read == [one, b"7"]


# What array_record 0.8.6 writes of these records, "group_size:1,uncompressed". A block's header stands in the middle of
# the header of the fifth one's chunk.
ARRAY_RECORDS = [(b"A", 9000), (b"B", 60_000), (b"C", 3), (b"D", 61_784), (b"E", 9000), (b"F", 9000)]
WRITTEN = zlib.decompress(
    base64.b85decode(
        "c-rmSUuczO90&0C?2PRkV~3G{7*P~iBylJvB6M82nl6$kf|drx>1;d7>TKuqo^7Rg5g64)MMk+GQMyPL7LvQL6{R&Y3^K+R>|%&|k)?td3!#"
        "fl_rB*Mh;9w``P}@T-}iYQczNHe7k)brRwkQX->^1_wa0bW7vHwM^V;c;Yx(JYi;w>H*+f_k{^`KRLqBvZS$RCWJnFyuvUAnc_~eISBI;Mfc"
        "~Cdn`5*uQ00000001li8*bSD+}P9kpm;7Coq2TsO(!oLZpqbVYMzbrAbDy!`49jA00000000000000000000000000000000000000000000"
        "000000000000000000000{C{j7oE;hMy7AW1Y%uS>OjNxY0002y6^<0g>V8>vPeb&-7;O9M(7_X{c5Mz5QJ;+SAd&3o=$KxeeR9XEYo?yL6o"
        "q$v-@2#q=EZHb)0^TvNY0!|t^)u700000000000000000000000000000000000000000000000000000000000000000000000Ir+4_O7?O"
        "hwopLT^`K)^Vp~LmwxU0aqiCX(Irt7Y>M}CyPJLv6VZA_oCS5Go$CPr00000003YCSUvUj-u#irQngu|_rHE>*&lWFnSYz90RR9100000fQ4"
        "Y>@{8U3x^@P8<I$OQ`SjA}-3M+78>9ZcI1d^Njp@{)bb3)fm1u5gX}Epk*04NO$yfWf7jv!I!LTq;t(2?9+?GPATFh1oz4^g%zPnWJc|PA=9"
        "vbK^gxli1p@E)qe<dtdtHs`If8nKkr4SZMrDCbC+MjDpwKtD;wj@&TKHPk2I(c<5zNfzVT0MKU&YZcnx^Sg2Ix}-DHNO}hy!g#+A2p@7d>%b"
        ")&(KIF7fy^-0ssI200000000000000000000000000000000000000000000000000001CzZtdCj--pkS*ZOi?w`SH)KHf6>)4g&3z$4qsZ("
        "JUKIZQ_V-L(tJOeT~1<jr*R$)o50dga8#@fZH9o6B{Ss~=o!>$?)&&g@9sv2<eP6BS<q0000000000000000000000000000000000000000"
        "00000000000000000000000000000000000007|n`Ws56T(J"
    )
)


def test_records_of_array_record_are_those_that_its_writer_wrote(tmp_path: Path) -> None:
    for name in ("train.array_record-00000-of-00002", "train.array_record-00001-of-00002"):
        (tmp_path / name).write_bytes(WRITTEN)
    (tmp_path / "features.json").touch()
    streams, tree = streams_of(tmp_path, layout="array_record", sampler="sequential", epochs=1)
    rows = ranges(tree, streams.epoch_ids(0, 0))
    assert len(rows) == 2 * len(ARRAY_RECORDS)
    for (letter, count), (path, offset, length) in zip(ARRAY_RECORDS, rows[: len(ARRAY_RECORDS)], strict=True):
        assert path.endswith(b"-00000-of-00002")
        # With the header of the chunk, what says how long the record is, and the headers of blocks.
        assert 40 < length - count <= 40 + 8 + 2 * 24
        assert WRITTEN[offset : offset + length].count(letter) >= count


def test_array_records_that_grain_would_not_read_one_by_one_are_refused(tmp_path: Path) -> None:
    grouped = bytearray(WRITTEN)
    grouped[64 + 25] = 2  # two records in the first chunk
    (tmp_path / "a.array_record").write_bytes(grouped)
    with pytest.raises(JobError, match="2 records lie in one chunk: Grain wants group_size:1"):
        streams_of(tmp_path, layout="array_record")
    (tmp_path / "a.array_record").write_bytes(WRITTEN[:-1])
    with pytest.raises(JobError, match="its end is missing"):
        streams_of(tmp_path, layout="array_record")


def test_samples_of_mds_are_those_of_the_shards_in_the_index(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shards = {"shard.00000.mds": samples(3), "shard.00001.mds": samples(2)}
    for name, of_shard in shards.items():
        ends = np.cumsum([4 * (len(of_shard) + 2), *map(len, of_shard)])
        head = struct.pack("<I", len(of_shard)) + ends.astype("<u4").tobytes()
        (tmp_path / "data" / name).write_bytes(head + b"".join(of_shard))
    index = {"version": 2, "shards": [{"raw_data": {"basename": name}, "samples": 1} for name in shards]}
    (tmp_path / "data" / "index.json").write_text(json.dumps(index))
    streams, tree = streams_of(tmp_path, layout="mds", root="data", sampler="sequential", epochs=1)
    assert contents(tmp_path, tree, streams.epoch_ids(0, 0)) == [*samples(3), *samples(2)]
    (tmp_path / "data" / "shard.00001.mds").unlink()
    with pytest.raises(JobError, match=r"no shard 'shard\.00001\.mds'"):
        streams_of(tmp_path, layout="mds", root="data")


def test_sequences_of_megatron_are_those_of_its_index(tmp_path: Path) -> None:
    lengths = np.array([6000, 9000, 5000], np.int32)
    tokens = np.arange(lengths.sum(), dtype=np.uint16)
    (tmp_path / "text.bin").write_bytes(tokens.tobytes())
    begins = 2 * np.concatenate([[0], np.cumsum(lengths)[:-1]])
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4)
    (tmp_path / "text.idx").write_bytes(head + lengths.tobytes() + begins.tobytes() + np.arange(4).tobytes())
    streams, tree = streams_of(tmp_path, layout="megatron", root="text.idx", sampler="sequential", epochs=1)
    found = contents(tmp_path, tree, streams.epoch_ids(0, 0))
    assert [np.frombuffer(one, np.uint16).tolist() for one in found] == [
        one.tolist() for one in np.split(tokens, np.cumsum(lengths)[:-1])
    ]


def test_samples_of_ffcv_are_what_was_allocated_for_them(tmp_path: Path) -> None:
    written = [[bytes([65 + n]) * (9000 + 137 * n), bytes([97 + n]) * 5000 * (n % 2)] for n in range(9)]
    places = write_beton(tmp_path / "a.beton", written, 1 << 16)
    streams, tree = streams_of(tmp_path, layout="ffcv", sampler="sequential", epochs=1)
    assert contents(tmp_path, tree, streams.epoch_ids(0, 0)) == [b"".join(one) for one in written]
    found = [offset for _, offset, _ in ranges(tree, streams.epoch_ids(0, 0))]
    assert found == places["ptr"][:, 0].tolist()


def test_a_place_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(bytes(40_000))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
    (tmp_path / "text.idx").write_bytes(head + struct.pack("<iq", 9000, (1 << 63) - 10) + bytes(16))
    with pytest.raises(JobError, match=r"which 'text\.bin' does not have"):
        streams_of(tmp_path, layout="megatron", root="text.idx", sampler="sequential", epochs=1)


@pytest.mark.parametrize("layout", ["npy", "tar", "tfrecord", "array_record", "mds", "megatron", "ffcv"])
def test_a_file_of_another_format_is_refused_in_one_line(tmp_path: Path, layout: str) -> None:
    """Drawn bytes behind the beginning of the format, so that its lengths are drawn: many are beyond all files."""
    beginnings = {"npy": b"\x93NUMPY\1\0\x76\0", "megatron": b"MMIDIDX\0\0" + struct.pack("<QB", 1, 4)}
    beginnings["array_record"] = WRITTEN[:64]
    beginnings["ffcv"] = struct.pack("<HHIQQ", 2, 1, 1 << 16, 3, 24)
    if layout == "mds":
        (tmp_path / "index.json").write_text(json.dumps({"shards": [{"raw_data": {"basename": "x.mds"}}]}))
    (tmp_path / "x.bin").touch()
    for seed in range(40):
        rng = random.Random(seed)
        content = beginnings.get(layout, b"") * rng.randrange(2) + rng.randbytes(rng.choice([0, 3, 40, 5000]))
        (tmp_path / f"x.{ {'megatron': 'idx', 'ffcv': 'beton'}.get(layout, layout) }").write_bytes(content)
        with pytest.raises(JobError):
            streams_of(tmp_path, layout=layout, sampler="sequential", epochs=1)


def test_an_empty_list_of_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "x").write_bytes(bytes(ROW))
    (tmp_path / "ranges").touch()
    with pytest.raises(JobError, match="is empty"):
        streams_of(tmp_path / "source", layout="ranges", manifest_file=str(tmp_path / "ranges"), seed=3, epochs=1)
