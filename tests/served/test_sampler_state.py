"""Where a sampler of a served order is: what is saved within an epoch and at its end, and where a script goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from mlfs.torch import ServedSampler

EPOCHS = [[3, 1, 2, 0], [0, 2, 1, 3], [1, 0, 3, 2]]


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A directory that looks like a mount with a job whose order is served."""
    control = tmp_path / ".mlfs"
    fields = {"name": "train", "serve": "locality", "samples": 4, "epochs": 3, "world_size": 1, "batch_size": 2}
    (control / "jobs").mkdir(parents=True)
    (control / "jobs" / "train.json").write_text(json.dumps(fields))
    (control / "status").touch()
    for epoch, indices in enumerate(EPOCHS):
        order = control / "order" / "train" / str(epoch) / "0.indices"
        order.parent.mkdir(parents=True)
        order.write_text("".join(f"{index}\n" for index in indices))
    return tmp_path


def sampler_of(mount: Path, state: dict[str, int] | None = None) -> ServedSampler:
    sampler = ServedSampler(mount, rank=0, num_replicas=1)
    if state is not None:
        sampler.load_state_dict(state)
    return sampler


def went_on(mount: Path, state: dict[str, int]) -> list[list[int]]:
    """What a script reads, epoch by epoch, that begins with the saved epoch."""
    sampler, read = sampler_of(mount, state), []
    for epoch in range(state["epoch"], 3):
        sampler.set_epoch(epoch)
        read.append([int(index) for batch in DataLoader(range(4), sampler=sampler, batch_size=2) for index in batch])  # type: ignore[arg-type]
    return read


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
    assert sampler.state_dict() == {"epoch": 2, "index": 0}
    assert list(sampler) == EPOCHS[2]
