"""Where a sampler of a served order is: what is saved within an epoch and at its end, and where a script goes on."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from served_support import nodes_of, served
from torch.utils.data import DataLoader, DistributedSampler

from mlfs.errors import JobError
from mlfs.torch import ServedBatchSampler, ServedSampler, served_job
from mlfs.torch import sampler as sampler_module

EPOCHS = [[3, 1, 2, 0], [0, 2, 1, 3], [1, 0, 3, 2]]
SAMPLES = 144


@pytest.fixture(autouse=True)
def warned_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is warned of once in a process was warned of already."""
    monkeypatch.setattr(sampler_module, "warn", lambda _: None)


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A directory that looks like a mount with a job whose order is served."""
    control = tmp_path / ".mlfs"
    fields = {"name": "train", "serve": "locality", "samples": 4, "epochs": 3, "world_size": 1, "batch_size": 2}
    fields["sampler"] = "torch-distributed"
    (control / "jobs").mkdir(parents=True)
    (control / "jobs" / "train.json").write_text(json.dumps(fields))
    (control / "status").touch()
    for epoch, indices in enumerate(EPOCHS):
        order = control / "order" / "train" / str(epoch) / "0.indices"
        order.parent.mkdir(parents=True)
        order.write_text("".join(f"{index}\n" for index in indices))
    return tmp_path


def sampler_of(mount: Path, state: dict[str, Any] | None = None, world: int = 1) -> ServedSampler:
    sampler = ServedSampler(mount, rank=0, num_replicas=world)
    if state is not None:
        sampler.load_state_dict(state)
    return sampler


def went_on(mount: Path, state: dict[str, Any]) -> list[list[int]]:
    """What a script reads, epoch by epoch, that begins with the saved epoch."""
    sampler, read = sampler_of(mount, state), []
    for epoch in range(state["epoch"], 3):
        sampler.set_epoch(epoch)
        read.append([int(index) for batch in DataLoader(range(4), sampler=sampler, batch_size=2) for index in batch])  # type: ignore[arg-type]
    return read


@pytest.mark.promise("served-resumed")
@pytest.mark.parametrize("taken", range(5))
def test_what_is_saved_after_any_number_of_indices_goes_on_with_the_next_one(mount: Path, taken: int) -> None:
    sampler = sampler_of(mount)
    sampler.set_epoch(1)
    indices = iter(sampler)
    assert [next(indices) for _ in range(taken)] == EPOCHS[1][:taken]
    if taken == 4:
        assert next(indices, None) is None  # the loader asks for one more, and learns that the epoch is over
    assert went_on(mount, sampler.state_dict()) == [EPOCHS[1][taken:], EPOCHS[2]]


def test_an_epoch_that_is_read_again_is_read_whole_also_after_it_began_in_its_middle(mount: Path) -> None:
    sampler = sampler_of(mount, {"epoch": 1, "index": 3})
    sampler.set_epoch(1)
    assert len(sampler) == 1
    assert list(sampler) == EPOCHS[1][3:]
    assert len(sampler) == 4
    assert list(sampler) == EPOCHS[1]
    sampler.set_epoch(2)
    state = sampler.state_dict()
    assert (state["epoch"], state["index"]) == (2, 0)
    assert list(sampler) == EPOCHS[2]


def register(mount: Path, **changed: object) -> None:
    """Another registration of the job: its order stays what the files say."""
    path = mount / ".mlfs" / "jobs" / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.promise("served-resumed")
def test_a_state_of_the_middle_of_another_order_is_refused_and_the_next_epoch_is_read(mount: Path) -> None:
    before = sampler_of(mount)
    indices = iter(before)
    assert [next(indices) for _ in range(2)] == EPOCHS[0][:2]
    state = before.state_dict()
    register(mount, num_workers=4, persistent_workers=True, prefetch_factor=8, epochs=4)  # no matter of the order
    assert list(sampler_of(mount, state)) == EPOCHS[0][2:]
    register(mount, seed=4)
    now = sampler_of(mount, state)
    for _ in (1, 2):
        with pytest.raises(JobError, match=r"behind index 2 of the order of the job train .*, and this rank reads"):
            list(now)
    now.set_epoch(1)
    assert list(now) == EPOCHS[1]
    assert list(sampler_of(mount, {"epoch": 0, "index": 2})) == EPOCHS[0][2:], "made by hand: taken at its word"
    assert list(sampler_of(mount, state | {"index": 0})) == EPOCHS[0], "where an epoch begins, any order may begin"
    begun = sampler_of(mount, state)
    begun.set_epoch(0, start_index=2)
    assert list(begun) == EPOCHS[0][2:]


def test_a_state_of_a_served_order_is_not_gone_on_with_in_distributed_samplers_own(mount: Path) -> None:
    served = sampler_of(mount)
    indices = iter(served)
    next(indices)
    shutil.rmtree(mount / ".mlfs")
    own = [ServedSampler(mount, range(8), rank=0, num_replicas=ranks, seed=3) for ranks in (1, 2)]
    first = iter(own[0])
    taken = [next(first) for _ in range(3)]
    state = own[0].state_dict()
    again = ServedSampler(mount, range(8), rank=0, num_replicas=1, seed=3)
    again.load_state_dict(state)
    assert sorted(taken + list(again)) == list(range(8))
    for other, sampler in ((served.state_dict(), own[0]), (state, own[1])):
        sampler.load_state_dict(other)
        with pytest.raises(JobError, match="and this rank reads DistributedSampler's own order"):
            list(sampler)


def serve(mount: Path, world: int, batch_size: int) -> None:
    """The mount has a job of that many ranks, a node each, with the order that mlfs serves to them."""
    nodes = nodes_of([[rank] for rank in range(world)], 20 * 4096)
    spec, _, order = served(SAMPLES, world_size=world, batch_size=batch_size, nodes=nodes, serve="locality", seed=3)
    job = spec.understood() | {"samples": SAMPLES, "tree": order.tree}
    (mount / ".mlfs" / "jobs" / "train.json").write_text(json.dumps(job))
    for epoch in range(spec.epochs):
        directory = mount / ".mlfs" / "order" / "train" / str(epoch)
        for rank in range(world):
            text = "".join(f"{index}\n" for index in order.rank_stream(epoch, rank).tolist())
            (directory / f"{rank}.indices").write_text(text)


@pytest.mark.promise("served-elastic")
@pytest.mark.parametrize("is_served", [True, False])
@pytest.mark.parametrize("worlds", [((4, 3), (3, 4), (6, 2)), ((2, 8), (1, 16), (8, 2)), ((3, 4), (4, 3), (3, 4))])
def test_each_sample_is_read_once_an_epoch_whatever_number_of_ranks_goes_on(
    mount: Path, worlds: tuple[tuple[int, int], ...], is_served: bool
) -> None:
    """Each world reads a third of the epoch's steps, and the last one the rest of it and the next epoch."""
    if not is_served:
        shutil.rmtree(mount / ".mlfs")
    samples, state, read = range(SAMPLES), dict[str, Any](), list[int]()
    for turn, (world, batch_size) in enumerate(worlds):
        if is_served:
            serve(mount, world, batch_size)
        ranks = [ServedSampler(mount, samples, rank=rank, num_replicas=world, seed=3) for rank in range(world)]
        taken = SAMPLES // (3 * world) // batch_size * batch_size
        for rank in ranks:
            if state:
                rank.load_state_dict(state)
            rank.set_epoch(1)
            indices = iter(rank)
            read += list(indices) if turn + 1 == len(worlds) else [next(indices) for _ in range(taken)]
        state = ranks[-1].state_dict()
    assert sorted(read) == list(samples)
    for rank in ranks:
        rank.set_epoch(2)
    assert sorted(index for rank in ranks for index in rank) == list(samples)


def test_an_epoch_that_others_left_within_a_step_is_not_gone_on_with(mount: Path) -> None:
    serve(mount, 4, 3)
    before = sampler_of(mount, None, 4)
    indices = iter(before)
    state = [next(indices) for _ in range(3)] and before.state_dict()
    for world, batch_size, is_whole in (3, 4, True), (2, 2, True), (5, 4, False), (2, 4, False):
        serve(mount, world, batch_size)
        now = sampler_of(mount, state, world)
        if is_whole:
            assert len(now) == (SAMPLES - 12) // world
            continue
        with pytest.raises(JobError, match="behind index 3 of the order"):
            list(now)
        now.set_epoch(0, 0)
        assert len(list(now)) == -(-SAMPLES // world)


def test_a_state_or_an_epoch_that_says_nothing_is_refused_at_once(mount: Path) -> None:
    sampler = sampler_of(mount)
    for state in ({"epoch": 1}, {"index": 1}, {"epoch": 1, "index": -2}, {"epoch": "1", "index": 0}):
        with pytest.raises(JobError, match="does not say where to go on"):
            sampler.load_state_dict(state)
    with pytest.raises(TypeError):
        sampler.set_epoch(1.0)  # type: ignore[arg-type]
    assert list(sampler) == EPOCHS[0]


def test_an_order_of_which_the_ranks_disagree_is_refused_again_and_again(
    mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(*_: object) -> None:
        raise JobError("the ranks do not read one order", "", "serve")

    monkeypatch.setattr(sampler_module, "check_alike", differ)
    sampler = sampler_of(mount)
    for _ in (1, 2):
        with pytest.raises(JobError, match="do not read one order"):
            list(sampler)


def test_an_epoch_that_is_read_again_is_of_the_job_that_is_there(mount: Path) -> None:
    sampler = sampler_of(mount)
    assert list(sampler) == EPOCHS[0]
    register(mount, seed=4)
    with pytest.raises(JobError, match="was registered anew with another order"):
        list(sampler)


def test_batches_are_the_samplers_indices_whole_or_without_a_short_last_one(mount: Path) -> None:
    register(mount, batch_size=3)
    ranks = {"rank": 0, "num_replicas": 1}
    batches, whole = ServedBatchSampler(mount, **ranks), ServedBatchSampler(mount, drop_last=True, **ranks)
    for sampler, expected in ((batches, [EPOCHS[1][:3], EPOCHS[1][3:]]), (whole, [EPOCHS[1][:3]])):
        sampler.set_epoch(1)
        assert len(sampler) == len(expected)
        assert list(sampler) == expected
    batches.set_epoch(2)
    assert next(iter(batches)) == EPOCHS[2][:3]
    state = batches.state_dict()
    assert (state["epoch"], state["index"]) == (2, 3)
    again = ServedBatchSampler(mount, **ranks)
    again.load_state_dict(state)
    again.set_epoch(2)
    assert len(again) == 1
    assert list(again) == [EPOCHS[2][3:]]


def test_batches_of_distributed_samplers_own_order_need_a_size(mount: Path) -> None:
    shutil.rmtree(mount / ".mlfs")
    with pytest.raises(JobError, match="batch_size is missing"):
        ServedBatchSampler(mount, range(9), rank=0, num_replicas=2)
    own = DistributedSampler(range(9), 2, 0, seed=5)  # type: ignore[arg-type]
    sampler = ServedBatchSampler(mount, range(9), batch_size=2, rank=0, num_replicas=2, seed=5)
    sampler.set_epoch(1)
    own.set_epoch(1)
    indices = list(own)
    assert list(sampler) == [indices[:2], indices[2:4], indices[4:]]


def with_peers(mount: Path, nodes: int) -> str:
    """The mount has joined others, and has no job yet. Returns what says the job."""
    (mount / ".mlfs" / "status").write_text(json.dumps({"peers": {"nodes": nodes} if nodes else None}))
    path = mount / ".mlfs" / "jobs" / "train.json"
    job = path.read_text()
    path.unlink()
    return job


def test_a_job_that_another_node_is_told_is_waited_for_and_the_wait_is_said(
    mount: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(served_job, "SAID_AFTER_S", 0.1)
    job = with_peers(mount, 3)
    told = threading.Timer(0.5, (mount / ".mlfs" / "jobs" / "train.json").write_text, [job])
    told.start()
    assert list(sampler_of(mount)) == EPOCHS[0]
    told.join()
    said = capsys.readouterr().err
    assert said.count("waiting up to 25 s for one that another node is told") == 1


@pytest.mark.parametrize(("nodes", "waits"), [(0, False), (1, False), (2, True)])
def test_a_job_that_nobody_is_told_is_waited_for_only_among_peers(
    mount: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, waits: bool
) -> None:
    monkeypatch.setattr(served_job, "PATIENCE_S", 0.3)
    with_peers(mount, nodes)
    with pytest.raises(JobError) as error:
        ServedSampler(mount, rank=0, num_replicas=1, fall_back=False)
    assert "no job with a served order is registered" in str(error.value)
    assert ("nor was it within 0.3 s on another node" in str(error.value)) == waits


@pytest.mark.promise("served-resumed")
@pytest.mark.parametrize("change", [{"persistent_workers": True}, {"num_workers": 4}, {"loader_drop_last": True}])
def test_a_state_is_of_another_order_where_the_loader_draws_from_the_generator_that_shuffles(
    mount: Path, change: dict[str, object]
) -> None:
    """Persistent workers draw fewer words between two epochs of torch's RandomSampler, and so on."""
    register(mount, sampler="torch-random")
    before = sampler_of(mount)
    next(iter(before))
    register(mount, **change)
    with pytest.raises(JobError, match="behind index 1 of the order of the job train"):
        list(sampler_of(mount, before.state_dict()))
