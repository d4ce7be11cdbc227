"""Nobody registered a job: the order of reads is found out. Real DataLoaders over a real mount.

The scripts are plain torch; only their first epoch waits, between two batches, until the mount says that it knows: so
what is asserted does not hang on how fast the search is.
"""

from __future__ import annotations

import multiprocessing as mp
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import make_classes, make_tree

from mlfs.orders.mt19937 import randperm

pytestmark = pytest.mark.page_counts

CLASSES, FILES, BATCH = 4, 600, 16
WAIT_S = 120


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A small ImageFolder."""
    return make_classes(tmp_path / "images", FILES, CLASSES, lambda index: index.to_bytes(4, "big") * 400)


def distributed(dataset: Any, seed: int) -> Any:
    """A DataLoader for each epoch, as with DistributedSampler."""
    from torch.utils.data import DataLoader, DistributedSampler

    sampler: Any = DistributedSampler(dataset, 1, 0, seed=seed)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=2)

    def epoch(number: int) -> Any:
        sampler.set_epoch(number)
        return loader

    return epoch


def seeded(dataset: Any, seed: int) -> Any:
    """`torch.manual_seed` and shuffle=True, as most scripts do it."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(seed)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=2)
    return lambda number: loader


def sequential(dataset: Any, _seed: int) -> Any:
    """No shuffling, no workers."""
    from torch.utils.data import DataLoader

    return lambda number: DataLoader(dataset, BATCH)


def shuffled_once(dataset: Any, _seed: int) -> Any:
    """A list without a seed, the same in each epoch."""
    from torch.utils.data import DataLoader

    order = random.SystemRandom().sample(range(len(dataset)), len(dataset))
    loader = DataLoader(dataset, BATCH, sampler=order, num_workers=2)
    return lambda number: loader


def drawing_in_between(dataset: Any, seed: int) -> Any:
    """A model is made first, and each epoch ends with random numbers of another use."""
    import torch

    torch.manual_seed(seed)
    torch.rand(1000)
    loader = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=2)

    def epoch(number: int) -> Any:
        if number:
            torch.rand(500)
        return loader

    return epoch


def script(directory: str, make: Callable[[Any, int], Any], seed: int, epochs: int, locked: Any, waits: int) -> None:
    """An ordinary training loop, but that its first epochs wait, each between two batches."""
    import torch
    from torch.utils.data import Dataset

    torch.set_num_threads(1)
    paths = sorted(str(path) for path in Path(directory).glob("*/*"))

    class Files(Dataset[int]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            with open(paths[index], "rb") as file:
                return int.from_bytes(file.read(4), "big")

    epoch = make(Files(), seed)
    for number in range(epochs):
        for step, _ in enumerate(epoch(number)):
            if step == 8 and number < waits:
                assert locked.acquire(timeout=WAIT_S)


def run(mount: MlfsMount, make: Callable[[Any, int], Any], seed: int, epochs: int, *wait_for: str) -> dict[str, Any]:
    """Train; returns the status at the end. `wait_for`: words of the hypotheses that the first epochs wait for."""
    context = mp.get_context("fork")
    locked = context.Semaphore(0)
    words = wait_for or ("",)
    process = context.Process(target=script, args=(str(mount.path), make, seed, epochs, locked, len(words)))
    process.start()
    try:
        for one in words:
            known = wait_until(lambda one=one: is_locked(mount, one) or not process.is_alive(), WAIT_S)
            assert known, (one, mount.status())
            locked.release()
        process.join(WAIT_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    assert wait_until(lambda: mount.status()["under_way"]["opens_and_releases"] == 0, WAIT_S)
    return mount.status()


def is_locked(mount: MlfsMount, words: str) -> bool:
    """Whether an order was found, explained in these words, and is in use."""
    told = mount.status()["inference"]
    return told["state"] == "locked on" and words in told.get("hypothesis", "")


def test_an_unmodified_script_is_locked_on_within_its_first_epoch(images: Path, channel: str) -> None:
    with MlfsMount(images, infer=True) as mount:
        status = run(mount, distributed, 123456, 3)
        assert status["channel"]["name"] == channel
        (job,) = status["jobs"]
        assert job["inferred"]
        assert job["agreement"] >= 0.999
        assert (job["spec"]["seed"], job["spec"]["batch_size"], job["name"]) == (123456, BATCH, "inferred")
        assert job["loader"]["batch_size"]["from"] in {"inferred", "learned"}
        assert "inferred" in status["messages"][0]
        assert "not registered" in mount.run("status", str(mount.path)).stdout
        assert status["fetches"]["pfs"]["count"] == FILES


def test_an_order_without_a_seed_is_followed_once_it_is_read_again(images: Path) -> None:
    """It is known from the second epoch's first reads, while the search through all seeds goes on."""
    with MlfsMount(images, infer=True) as mount:
        context = mp.get_context("fork")
        process = context.Process(target=script, args=(str(mount.path), shuffled_once, 0, 3, None, 0))
        process.start()
        process.join(WAIT_S)
        assert process.exitcode == 0
        assert wait_until(lambda: mount.status()["under_way"]["opens_and_releases"] == 0, WAIT_S)
        status = mount.status()
        (job,) = status["jobs"]
        assert (job["inferred"], job["spec"]["sampler"]) == (True, "explicit")
        assert job["agreement"] >= 0.99
        assert status["inference"]["hypothesis"] == "what 2 processes read before, again in each epoch"
        assert status["fetches"]["pfs"]["count"] == FILES


def test_a_random_32_bit_seed_is_found_and_the_second_epoch_served_like_a_registered_one(images: Path) -> None:
    """The search over 2^32 seeds takes minutes: here it is led to the neighbourhood of the two seeds that matter."""
    import torch

    drawn = 0
    while drawn < 1 << 20:  # one that could be somebody's choice has more than one hypothesis
        seed = random.randrange(1 << 20, (1 << 32) - 4096)
        generator = torch.Generator().manual_seed(seed)
        drawn = [int(torch.empty((), dtype=torch.int64).random_(generator=generator)) & 0xFFFFFFFF for _ in "12"][1]
    ranges = [(max(0, low - 2000), low + 2000) for low in (drawn, seed)]
    mount = MlfsMount(images, infer=True)
    mount.extra_env["MLFS_INFER_SEEDS"] = ",".join(f"{low}-{high}" for low, high in ranges)
    with mount:
        status = run(mount, seeded, seed, 3, "default generator")
        (job,) = status["jobs"]
        assert job["agreement"] >= 0.999
        spec = job["spec"]
        assert (spec["sampler"], spec["generator"], spec["seed"]) == ("torch-random", "default", seed)
        assert status["fetches"]["pfs"]["count"] == FILES


def test_of_several_generators_that_fit_the_second_epochs_first_reads_choose(images: Path) -> None:
    """758485056 draws the same first seed as 3141592653, and would be as good a guess."""
    mount = MlfsMount(images, infer=True)
    ranges = [(low - 50, low + 50) for low in (1398446480, 758485056, 3141592653)]
    mount.extra_env["MLFS_INFER_SEEDS"] = ",".join(f"{low}-{high}" for low, high in ranges)
    with mount:
        status = run(mount, seeded, 3141592653, 3, "seed 758485056")
        (job,) = status["jobs"]
        assert job["agreement"] >= 0.999
        assert (job["spec"]["generator"], job["spec"]["seed"]) == ("default", 3141592653)
        assert status["inference"]["searches"] == 1
        assert status["fetches"]["pfs"]["count"] == FILES


def test_what_a_script_draws_between_two_epochs_is_learned_in_the_second(images: Path) -> None:
    mount = MlfsMount(images, infer=True)
    mount.extra_env["MLFS_INFER_SEEDS"] = "0-1"
    with mount:
        status = run(mount, drawing_in_between, 42, 4, "words before 1000", "words between 500")
        (job,) = status["jobs"]
        assert job["agreement"] >= 0.999
        assert (job["spec"]["generator"], job["spec"]["seed"]) == ("default", 42)
        assert status["inference"]["searches"] == 1  # the second epoch begins near where the first one ended
        assert sorted(job["agreement_by_epoch"]) == ["1", "2", "3"]  # the second, third and fourth


def read_in_turns(directory: str, orders: list[list[str]], go_on: Any) -> None:
    """Read one list of files after the other, each as soon as `go_on` is given."""
    for paths in orders:
        assert go_on.acquire(timeout=WAIT_S)
        for path in paths:
            with open(f"{directory}/{path}", "rb") as file:
                file.read()


def test_validation_and_training_are_told_apart(tmp_path: Path) -> None:
    """A look at the validation set comes first, as with Lightning; its order is none for the training set."""
    spec = {f"{part}/c{i % 2}/{i:03d}.jpg": 1000 for part, n in (("val", 60), ("train", 300)) for i in range(n)}
    root = make_tree(tmp_path / "both", spec)
    files = {part: sorted(str(p.relative_to(root)) for p in root.glob(f"{part}/*/*")) for part in ("val", "train")}
    shuffled = [files["train"][i] for i in randperm(300, 4321).tolist()]
    context = mp.get_context("fork")
    go_on = context.Semaphore(1)
    with MlfsMount(root, infer=True) as mount:
        process = context.Process(target=read_in_turns, args=(str(mount.path), [files["val"], shuffled[:40]], go_on))
        process.start()
        assert wait_until(lambda: is_locked(mount, "sequential"), WAIT_S), mount.status()
        go_on.release()
        assert wait_until(lambda: is_locked(mount, "seed 4321"), WAIT_S), mount.status()
        process.join(WAIT_S)
        jobs = {job["spec"]["root"]: job["spec"]["sampler"] for job in mount.status()["jobs"] if job["inferred"]}
        assert jobs == {"val": "sequential", "train": "torch-distributed"}


def test_a_reader_in_file_order_is_recognised_and_a_registration_ends_the_guessing(images: Path) -> None:
    with MlfsMount(images, infer=True) as mount:
        status = run(mount, sequential, 0, 2)
        (job,) = status["jobs"]
        assert job["spec"]["sampler"] == "sequential"
        assert job["agreement"] >= 0.999
        mount.register(seed=3, epochs=2)
        status = mount.status()
        assert [(job["name"], job["inferred"]) for job in status["jobs"]] == [("train", False)]
        assert status["inference"]["state"] == "a job is registered"


def test_an_epoch_in_another_order_is_found_anew(images: Path) -> None:
    """As of a script without a seed, whose next draw nobody can know."""
    paths = sorted(str(path.relative_to(images)) for path in images.glob("*/*"))
    orders = [[paths[i] for i in randperm(FILES, seed).tolist()] for seed in (1000, 77_000)]
    context = mp.get_context("fork")
    go_on = context.Semaphore(0)
    with MlfsMount(images, infer=True) as mount:
        process = context.Process(target=read_in_turns, args=(str(mount.path), orders, go_on))
        process.start()
        for words in ("seed 1000", "seed 77000"):
            go_on.release()
            assert wait_until(lambda words=words: is_locked(mount, words), WAIT_S), (words, mount.status())
        process.join(WAIT_S)
        assert process.exitcode == 0


def test_a_search_that_began_before_the_first_worker_had_read_begins_again(images: Path) -> None:
    paths = sorted(str(path.relative_to(images)) for path in images.glob("*/*"))
    order = [paths[i] for i in randperm(FILES, 4242).tolist()]
    workers = [
        [path for at in range(worker * BATCH, 160, 2 * BATCH) for path in order[at : at + BATCH]] for worker in (0, 1)
    ]
    context = mp.get_context("fork")
    go_on = context.Semaphore(0)
    with MlfsMount(images, infer=True) as mount:
        processes = [
            context.Process(target=read_in_turns, args=(str(mount.path), [reads], go_on)) for reads in reversed(workers)
        ]
        for process, done in zip(
            processes, (lambda: searchers(mount) != [], lambda: is_locked(mount, "4242")), strict=True
        ):
            process.start()
            go_on.release()
            assert wait_until(done, WAIT_S), mount.status()
            process.join(WAIT_S)


@pytest.mark.promise("infer-register")
def test_a_registration_ends_the_search_at_once(images: Path) -> None:
    """An order of no seed: the search would go on for minutes."""
    paths = sorted(str(path.relative_to(images)) for path in images.glob("*/*"))
    context = mp.get_context("fork")
    with MlfsMount(images, infer=True) as mount:
        orders = [random.SystemRandom().sample(paths, 100)]
        process = context.Process(target=read_in_turns, args=(str(mount.path), orders, context.Semaphore(1)))
        process.start()
        assert wait_until(lambda: searchers(mount) != [], WAIT_S), mount.status()
        process.join(WAIT_S)
        assert mount.status()["inference"]["state"] == "searching"
        mount.register(seed=3, epochs=2)
        assert mount.status()["inference"]["state"] == "a job is registered"
        assert wait_until(lambda: searchers(mount) == [], WAIT_S)


def searchers(mount: MlfsMount) -> list[int]:
    """Processes that search for a seed."""
    return [pid for pid, words in mount.pids().items() if "mlfs.explain.seed_search" in words]


@pytest.mark.promise("infer-off")
def test_forbidden_it_does_nothing(images: Path) -> None:
    with MlfsMount(images, "--infer", "off") as mount:
        for path in sorted(Path(mount.path).glob("*/*")):
            path.read_bytes()
        assert wait_until(lambda: mount.status()["under_way"]["opens_and_releases"] == 0, WAIT_S)
        assert mount.status()["inference"] == {"state": "off"}
        assert mount.status()["jobs"] == []
