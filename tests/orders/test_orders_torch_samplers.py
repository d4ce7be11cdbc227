"""torch's own samplers and torchdata's loader against the installed libraries: whole epochs, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchdata.stateful_dataloader.sampler as torchdata_sampler
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orders_support import assert_same_order, job
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from mlfs.errors import JobError
from mlfs.orders import mt19937
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order import build_order

Library = Callable[[int, int], list[int]]


def library(
    n: int, make: Callable[[torch.Generator | None], Any], fields: dict[str, Any], loader: Any = DataLoader,
    between: Callable[[torch.Generator | None], None] | None = None,
) -> Library:  # fmt: skip
    """A loader over 0 .. n-1 as a script makes it: seeds, draws what comes before, reads epoch after epoch."""
    torch.manual_seed(fields["seed"])
    own = None if fields["generator"] == "default" else torch.Generator().manual_seed(fields["seed"])
    if fields.get("words_before"):
        torch.empty(fields["words_before"], dtype=torch.int32).random_(generator=own)
    more = {"generator": own} if fields["generator"] == "shared" else {}
    workers = {key: fields[key] for key in ("num_workers", "persistent_workers") if key in fields}
    loading = loader(range(n), 4, sampler=make(own), collate_fn=list, **more, **workers)

    def epoch(_epoch: int, _rank: int) -> list[int]:
        seen = list(itertools.chain(*loading))
        if between is not None:
            between(own)
        return seen

    return epoch


def check_random(n: int, **fields: Any) -> None:
    def make(own: torch.Generator | None) -> RandomSampler:
        return RandomSampler(range(n), fields["replacement"], fields["num_samples"], own)

    assert_same_order(n, library(n, make, fields), sampler="torch-random", epochs=4, **fields)


def check_subset(n: int, **fields: Any) -> None:
    made = library(n, lambda own: SubsetRandomSampler(range(n), own), fields)
    assert_same_order(n, made, sampler="torch-subset", epochs=4, **fields)


def check_weighted(weights: list[float], binary: bool, tmp_path_factory: pytest.TempPathFactory, **fields: Any) -> None:
    path = tmp_path_factory.mktemp("weights") / "weights"
    if binary:
        with path.open("wb") as file:
            np.save(file, weights)
    else:
        path.write_text("\n".join(map(repr, weights)))
    drawn = fields["num_samples"] or len(weights)
    if drawn == 1:
        return

    def make(own: torch.Generator | None) -> WeightedRandomSampler:
        return WeightedRandomSampler(weights, drawn, generator=own)

    made = library(len(weights), make, fields)
    assert_same_order(len(weights), made, sampler="torch-weighted", epochs=3, weights_file=str(path), **fields)


def test_a_million_weights_are_summed_as_torch_does(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).random(1_000_000) ** 9
    np.save(tmp_path / "w.npy", weights)
    fields = {"seed": 7, "generator": "own", "num_samples": 50_000}
    made = library(10**6, lambda own: WeightedRandomSampler(torch.from_numpy(weights), 50_000, generator=own), fields)
    path = str(tmp_path / "w.npy")
    assert_same_order(10**6, made, sampler="torch-weighted", epochs=1, weights_file=path, **fields)


def check_stateful(n: int, **fields: Any) -> None:
    def make(own: torch.Generator | None) -> Any:
        return torchdata_sampler.RandomSampler(range(n), fields["replacement"], fields["num_samples"], own)

    made = library(n, make, fields, StatefulDataLoader)
    assert_same_order(n, made, sampler="torch-stateful", epochs=4, num_workers=0, **fields)


GENERATED: dict[str, Any] = {
    "seed": st.one_of(st.integers(-(2**63), 2**64 - 1), st.integers(-3, 3), st.sampled_from([2**31, 2**32 - 1, 2**32])),
    "generator": st.sampled_from(["default", "own", "shared"]),
}
SHUFFLED = {"n": st.integers(1, 120), "words_before": st.integers(0, 700), **GENERATED}
DRAWN = {"replacement": st.booleans(), "num_samples": st.none() | st.integers(1, 300), **SHUFFLED}
WEIGHTED = {
    "weights": st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=80).filter(lambda w: sum(w) > 0),
    "num_samples": st.none() | st.integers(2, 200),
    "binary": st.booleans(),
    **GENERATED,
}
# The same twice: some cases in every run, thousands when asked for (python -m pytest -m oracle).
SOME, MANY = settings(max_examples=60, deadline=None), settings(max_examples=2000, deadline=None)
LONG = example(n=624, seed=0, generator="own", words_before=1, replacement=False, num_samples=None)
WHOLE_ONES = example(n=5, seed=-1, generator="shared", words_before=0, replacement=False, num_samples=10)
QUIET = pytest.mark.filterwarnings("ignore:'set_vital'")

test_random_is_torchs = LONG(WHOLE_ONES(SOME(given(**DRAWN)(check_random))))
test_subset_is_torchs = SOME(given(**SHUFFLED)(check_subset))
test_weighted_is_torchs = SOME(given(**WEIGHTED)(check_weighted))
test_stateful_is_torchdatas = QUIET(LONG(WHOLE_ONES(SOME(given(**DRAWN)(check_stateful)))))

test_random_is_torchs_in_many_cases = pytest.mark.oracle(MANY(given(**DRAWN)(check_random)))
test_subset_is_torchs_in_many_cases = pytest.mark.oracle(MANY(given(**SHUFFLED)(check_subset)))
test_weighted_is_torchs_in_many_cases = pytest.mark.oracle(MANY(given(**WEIGHTED)(check_weighted)))
test_stateful_is_torchdatas_in_many_cases = QUIET(pytest.mark.oracle(MANY(given(**DRAWN)(check_stateful))))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("generator", ["default", "shared"])
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_worker_processes_shift_the_generators_as_they_do_in_the_libraries(generator: str, persistent: bool) -> None:
    fields = {"seed": 11, "generator": generator, "num_workers": 1, "persistent_workers": persistent}
    made = library(37, lambda own: RandomSampler(range(37), generator=own), fields)
    assert_same_order(37, made, sampler="torch-random", epochs=3, **fields)
    made = library(
        37, lambda own: torchdata_sampler.RandomSampler(range(37), generator=own), fields, StatefulDataLoader
    )
    assert_same_order(37, made, sampler="torch-stateful", epochs=3, **fields)


@pytest.mark.parametrize(("sampler", "words"), [("torch-random", 4), ("torch-subset", 2 + 36)])
def test_train_and_validation_draw_from_one_generator(sampler: str, words: int) -> None:
    # One script: both loaders shuffle, both with the default generator; validation comes after each training epoch.
    torch.manual_seed(3)
    make = RandomSampler if sampler == "torch-random" else SubsetRandomSampler
    train = DataLoader(range(37), 4, sampler=make(range(37)), collate_fn=list)
    validation = DataLoader(range(37), 4, sampler=make(range(37)), collate_fn=list)
    epochs = [[list(itertools.chain(*loader)) for loader in (train, validation)] for _ in range(3)]
    fields = {"sampler": sampler, "seed": 3, "epochs": 3, "words_between": words}
    assert_same_order(37, lambda epoch, rank: epochs[epoch][0], **fields)
    assert_same_order(37, lambda epoch, rank: epochs[epoch][1], words_before=words, **fields)


@pytest.mark.filterwarnings("ignore:'set_vital'")
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_validation_loader_whose_workers_persist_draws_its_base_seed_once(shuffled: bool) -> None:
    """As timm's loaders are: both keep their workers, and validation comes after each training epoch."""
    torch.manual_seed(9)
    torch.empty(40).uniform_()
    kept: Any = {"num_workers": 1, "persistent_workers": True, "collate_fn": list}
    train = DataLoader(range(37), 4, shuffle=True, **kept)
    validation = DataLoader(range(9), 4, shuffle=shuffled, **kept)
    epochs = [[list(itertools.chain(*loader)) for loader in (train, validation)] for _ in range(4)]
    fields = {"sampler": "torch-random", "seed": 9, "epochs": 4, "persistent_workers": True, "words_before": 40}
    fields |= {"words_once": 2, "words_between": 2 * shuffled}
    assert_same_order(37, lambda epoch, rank: epochs[epoch][0], **fields)


def test_a_validation_loader_in_order_shifts_by_two_words() -> None:
    fields = {"seed": 2, "generator": "shared", "words_between": 2}
    made = library(
        20, lambda own: RandomSampler(range(20), generator=own), fields,
        between=lambda own: list(DataLoader(range(5), generator=own)) and None,
    )  # fmt: skip
    assert_same_order(20, made, sampler="torch-random", epochs=5, **fields)


def test_an_epoch_that_is_left_early_has_no_permutation_after_it() -> None:
    generator = torch.Generator().manual_seed(4)
    loader = DataLoader(range(30), 10, sampler=RandomSampler(range(30), generator=generator), collate_fn=list)

    def left_early(epoch: int, rank: int) -> list[int]:
        reading = iter(loader)
        return [index for _ in range(3) for index in next(reading)]

    fields = {"sampler": "torch-random", "generator": "own", "seed": 4, "epochs": 4}
    assert_same_order(30, left_early, trailing_permutation=False, **fields)


def test_every_rank_reads_the_same() -> None:
    order = build_order(job(sampler="torch-random", world_size=3, seed=1), 50)
    assert order.rank_stream(0, 0).tolist() == order.rank_stream(0, 2).tolist()


def test_a_late_epoch_is_not_made_from_all_before_it() -> None:
    # 10,000 epochs of permutations would take minutes; their words are passed over.
    order = build_order(job(sampler="torch-random", generator="own", epochs=10_000, seed=5), 1000)
    generator = torch.Generator().manual_seed(5)
    torch.empty(9_999 * 2 * 999, dtype=torch.int32).random_(generator=generator)
    assert order.rank_stream(9_999, 0).tolist() == torch.randperm(1000, generator=generator).tolist()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sampler": "torch-random", "trailing_permutation": True}, "trailing_permutation"),
        ({"sampler": "torch-stateful", "num_workers": 0, "words_between": 2}, "words_between"),
        ({"sampler": "torch-weighted", "weights_file": "/nowhere"}, "weights_file"),
        ({"sampler": "torch-weighted", "weights_file": "/nowhere", "replacement": False}, "replacement"),
        ({"sampler": "torch-weighted", "weights_file": "/nowhere", "num_samples": 1}, "num_samples"),
    ],
)
def test_what_cannot_be_known_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(JobError) as caught:
        build_order(job(**fields), 5)
    assert caught.value.field == field
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\n2\n3\n4", "has 4 weights for 5 samples"),
        ("1\n2\nx\n4\n5", "could not convert string to float: b'x'"),
        ("1\n2\n-3\n4\n5", "weight 2 (from 0) is -3.0"),
        ("1\n2\nnan\n4\n5", "weight 2 (from 0) is nan"),
        ("0\n0\n0\n0\n0", "add up to 0.0"),
        ("", "its shape is (0,)"),
    ],
)
def test_weights_that_cannot_be_used_are_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "w").write_text(text)
    with pytest.raises(JobError) as caught:
        build_order(job(sampler="torch-weighted", weights_file=str(tmp_path / "w")), 5)
    assert says in caught.value.message
    assert caught.value.field == "weights_file"


def test_words_are_skipped_in_portions_as_if_taken() -> None:
    """In one call of minutes Ctrl-C would not be served."""
    count = 2 * (2 * mt19937.AT_ONCE) + 3
    words, same = TorchWords(5), TorchWords(5)
    words.skip(count)
    words.skip(0)
    assert words.take(4).tolist() == same.take(count + 4)[count:].tolist()
