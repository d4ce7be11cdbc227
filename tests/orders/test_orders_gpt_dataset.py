"""The layout "megatron-gpt": samples in pieces of documents, as GPTDataset reads them."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from orders_support import job, manifest_of
from support.megatron import gpt_indices, gpt_sample, write_indexed

from mlfs.errors import JobError
from mlfs.orders.layouts import gpt_dataset as gpt
from mlfs.orders.streams import build_streams
from mlfs.tree.source_files import SourceFiles

RECORDED = Path(__file__).parent / "recorded_gpt_dataset.json"


def lengths_of(draw: random.Random, count: int, most: int) -> np.ndarray:
    return np.array([draw.choice([draw.randint(0, most), draw.randint(1, 9)]) for _ in range(count)], np.int32)


def test_samples_and_their_order_are_those_of_plain_loops() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        lengths, sequence = lengths_of(draw, draw.randint(2, 30), 300), draw.choice([1, 7, 64, 500])
        documents = draw.randint(1, len(lengths))
        tokens = int(lengths[:documents].sum())
        if tokens <= sequence:
            with pytest.raises(ValueError, match="no sample"):
                gpt.computed(lengths[:documents].astype(np.int64), sequence, None, seed)
            continue
        samples = draw.choice([None, 1, draw.randint(1, 3 * tokens // sequence + 1)])
        expected = gpt_indices(lengths, documents, sequence, samples, seed)
        row = gpt.computed(lengths[:documents].astype(np.int64), sequence, samples, seed)
        saved = gpt.saved(expected, lengths.astype(np.int64))
        for one, other in zip(row, saved, strict=True):
            assert one.tolist() == other.tolist()
        check_pieces(row, lengths, expected)


def check_pieces(row: gpt.TokenRow, lengths: np.ndarray, indices: tuple[np.ndarray, ...]) -> None:
    """The pieces of a sample, put together, are its tokens."""
    tokens = np.arange(int(lengths.sum()))
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    found: dict[int, list[int]] = {}
    for columns in gpt.pieces(row, lengths.astype(np.int64), 2 * begins, 2):
        for sample, place, size in zip(*(column.tolist() for column in columns), strict=True):
            found.setdefault(sample, []).extend(tokens[place // 2 : (place + size) // 2].tolist())
    for at, sample in enumerate(row.sample_of.tolist()):
        assert found[sample] == gpt_sample(tokens, lengths, indices, at).tolist()


def test_indices_are_those_that_megatron_has_saved() -> None:
    """Recorded by scripts/record_gpt_dataset.py."""
    cases = json.loads(RECORDED.read_text())["cases"]
    assert len(cases) >= 20
    for case in cases:
        lengths = np.array(case["lengths"], np.int64)
        documents = gpt.first_part(len(lengths), case["split"])
        row = gpt.computed(lengths[:documents], case["sequence_length"], case["samples"], case["seed"])
        saved = gpt.saved([np.array(case[what]) for what in ("document", "sample", "shuffle")], lengths)
        for one, other in zip(row, saved, strict=True):
            assert one.tolist() == other.tolist()


def sample_bytes(source: Path, **fields: object) -> list[bytes]:
    """What is staged of each sample."""
    tree = manifest_of(source)
    spec = job(layout="megatron-gpt", sampler="sequential", epochs=1, **fields)
    streams = build_streams(spec, tree, os.fsencode(source), SourceFiles(os.fsencode(source)))
    found = []
    for rows in streams.epoch_ids(0, 0).reshape(-1, streams.files_per_sample):
        files, offsets, lengths = tree.rows.columns(rows[rows >= 0])
        content = [(source / os.fsdecode(tree.path(int(file)))).read_bytes() for file in files]
        found.append(b"".join(one[o : o + n] for one, o, n in zip(content, offsets, lengths, strict=True)))
    return found


def test_a_job_stages_the_pieces_that_have_pages(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    lengths = np.random.default_rng(2).integers(9000, 30_000, 20)
    tokens = write_indexed(tmp_path / "source/text", lengths)
    fields = {"sequence_length": 8000, "num_samples": 60, "document_split": [9, 1], "seed": 7}
    indices = gpt_indices(lengths, 18, 8000, 60, 7)
    staged = sample_bytes(tmp_path / "source", **fields)
    assert len(staged) == len(indices[2]) >= 60
    for at, ours in enumerate(staged):
        whole = gpt_sample(tokens, lengths, indices, at).tobytes()
        assert len(whole) == 2 * 8001
        assert len(ours) > len(whole) - 2 * 8192
        assert ours == whole or ours in (whole[: len(ours)], whole[-len(ours) :])
    for what, index in zip(("document", "sample", "shuffle"), indices, strict=True):
        np.save(tmp_path / f"abc-GPTDataset-train-{what}_index.npy", index)
    saved = str(tmp_path / "abc-GPTDataset-train-document_index.npy")
    assert sample_bytes(tmp_path / "source", manifest_file=saved) == staged


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, '"sequence_length" is missing'),
        ({"sequence_length": 10**6}, r"'text\.idx' cannot be read by rows: its .* tokens are no sample"),
        ({"manifest_file": "/x/index.npy"}, "is no document index"),
        ({"manifest_file": "/x/document_index.npy"}, "cannot be read: .*No such file"),
        ({"manifest_file": "{tmp}/few-document_index.npy"}, "those of other documents"),
        ({"manifest_file": "{tmp}/bad-document_index.npy"}, "other shapes"),
        ({"manifest_file": "{tmp}/cut-document_index.npy"}, "cannot be read"),
    ],
)
def test_what_is_no_gpt_dataset_is_refused(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    (tmp_path / "source").mkdir()
    lengths = np.full(10, 9000)
    write_indexed(tmp_path / "source/text", lengths)
    for name, arrays in (("few", gpt_indices(np.full(12, 9000), 12, 8000, None, 1)), ("bad", [np.zeros(3)] * 3)):
        for what, index in zip(("document", "sample", "shuffle"), arrays, strict=True):
            np.save(tmp_path / f"{name}-{what}_index.npy", index)
    (tmp_path / "cut-document_index.npy").write_bytes((tmp_path / "few-document_index.npy").read_bytes()[:100])
    given = {name: value.format(tmp=tmp_path) if isinstance(value, str) else value for name, value in fields.items()}
    with pytest.raises(JobError, match=said):
        sample_bytes(tmp_path / "source", **given)
