"""litdata's chunks: the layout that index.json says, and what the order refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from orders_support import job, make_file, manifest_of

from mlfs.errors import JobError
from mlfs.job import parse_job
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.tree.source_files import SourceFiles

CHUNKS = [("chunk-0-0.bin", 5), ("chunk-0-1.bin", 1), ("chunk-1-0.bin", 4)]


def data_set(root: Path, chunks: object = None) -> None:
    for name, _ in CHUNKS:
        make_file(root, name)
    listed = [{"filename": name, "chunk_size": count, "chunk_bytes": 1} for name, count in CHUNKS]
    (root / "index.json").write_text(json.dumps({"chunks": listed if chunks is None else chunks}))


def streams_of(source: Path, **fields: object) -> JobStreams:
    spec = job(preset="litdata", **{"epochs": 2} | fields)
    return build_streams(spec, manifest_of(source), os.fsencode(source), SourceFiles(os.fsencode(source)))


def test_each_worker_opens_the_chunks_that_its_samples_lie_in(tmp_path: Path) -> None:
    data_set(tmp_path / "data")
    streams = streams_of(tmp_path, root="data", shuffle=False, num_workers=2)
    assert streams.dataset_indices(0, 0).tolist() == [0, 1, 2]  # five samples each: the border is that of a chunk
    by_fours = streams_of(tmp_path, root="data", shuffle=False, world_size=2, group_batch=4, drop_last=False)
    tree = manifest_of(tmp_path)
    for rank, chunks in ((0, [0]), (1, [0, 1, 2])):  # four samples, and six
        opened = [tree.path(entry) for entry in by_fours.epoch_ids(0, rank).tolist() if entry >= 0]
        assert opened == [b"data/" + CHUNKS[at][0].encode() for at in chunks]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seed": -1}, 'field "seed" is -1'),
        ({"world_size": 3, "physical_nodes": 2}, "does not divide the ranks"),
        ({"split": [0.5, 0.5], "part": 0}, "deals all chunks"),
        ({"resume": {"current_epoch": 1, "num_samples_yielded": 10}}, "what is left of epoch 0 is nothing"),
        ({"resume": {"current_epoch": 1, "num_samples_yielded": 1}, "left_off": [0] * 7}, '"left_off" is 0'),
    ],
)
def test_what_litdata_does_not_do_is_refused(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    data_set(tmp_path)
    with pytest.raises(JobError, match=said):
        streams_of(tmp_path, **fields)


def test_a_state_says_what_is_left_to_read(tmp_path: Path) -> None:
    data_set(tmp_path)
    state = {"current_epoch": 1, "num_samples_yielded": 4, "dataset": {"world_size": 1, "batch_size": 1}}
    goes_on = streams_of(tmp_path, shuffle=False, resume=state | {"num_samples_yielded": 5})
    assert [goes_on.dataset_indices(epoch, 0).tolist() for epoch in (0, 1)] == [[0, 1, 2], [0, 1, 2]]
    assert parse_job(goes_on.spec.to_json()) == goes_on.spec
    in_two = streams_of(tmp_path, shuffle=False, resume=state, world_size=2)
    assert [in_two.dataset_indices(0, rank).tolist() for rank in (0, 1)] == [[0, 2], [1, 2]]
    nothing_read = streams_of(tmp_path, shuffle=False, resume=state | {"num_samples_yielded": 0})
    assert (nothing_read.spec.start_epoch, nothing_read.spec.left_off) == (1, None)


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([], "lists no chunk"),
        ([{"filename": "gone.bin", "chunk_size": 2}], "'gone.bin' is missing"),
        ([{"filename": "chunk-0-0.bin", "chunk_size": 0}], "has no samples"),
        ([{"filename": "chunk-0-0.bin"}], "cannot be read"),
        (7, "cannot be read"),
    ],
)
def test_an_index_that_says_no_chunks_is_refused(tmp_path: Path, chunks: object, said: str) -> None:
    data_set(tmp_path, chunks)
    with pytest.raises(JobError, match=said):
        streams_of(tmp_path)


def test_without_an_index_or_a_source_to_read_it_from_nothing_is_registered(tmp_path: Path) -> None:
    data_set(tmp_path)
    with pytest.raises(JobError, match="register it at a mount"):
        build_streams(job(preset="litdata", epochs=1), manifest_of(tmp_path), os.fsencode(tmp_path))
    (tmp_path / "index.json").unlink()
    with pytest.raises(JobError, match=r"no index\.json"):
        streams_of(tmp_path)
