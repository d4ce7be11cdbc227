"""The auditor on drawn scripts: nothing is said of scripts that mean what they do, and faults are found.

Each case is a script of any shape: data sets of 300 to 1,500 samples, 1 to 4 ranks, up to 8 workers that persist or do
not. The smallest are too small for some faults to be told from chance: so many scripts of a case must be judged right.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from audit.loops import Loop, Script, buffered, dealt, drawn, files_of, kinds, shuffled
from support.drawn import cases

from mlfs.audit.orders import Stream, shuffled_by

SCRIPTS = cases(8)
MOST_ALARMS, MOST_MISTAKEN = SCRIPTS // 20, SCRIPTS // 48
Case = Callable[[random.Random, Loop, Script], None]


def halves(rng: random.Random, loop: Loop) -> tuple[list, int]:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    return epochs, int(len(epochs[1][0]) * rng.uniform(0.3, 0.7))


def plain(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, dealt(loop, lambda epoch: shuffled(rng, loop.samples)))


def ranks_apart(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run_apart(loop, dealt(loop, lambda epoch: shuffled(rng, loop.samples)))


def resumed_apart(rng: random.Random, loop: Loop, script: Script) -> None:
    loop = loop._replace(ranks=max(2, loop.ranks))
    epochs, cut = halves(rng, loop)
    script.run_apart(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run_apart(loop, rng.choice([epochs[1:], [[rank[cut:] for rank in epochs[1]], *epochs[2:]]]))


def started_again_apart(rng: random.Random, loop: Loop, script: Script) -> None:
    loop = loop._replace(ranks=max(2, loop.ranks), persistent=False)
    epochs, cut = halves(rng, loop)
    script.run_apart(loop, [epochs[0], [rank[:cut] for rank in epochs[1]], *epochs[1:]])


def with_validation(rng: random.Random, loop: Loop, script: Script) -> None:
    validation = list(range(loop.samples, loop.samples * 6 // 5))
    script.run(loop, dealt(loop, lambda epoch: shuffled(rng, loop.samples)), validation, rng.random() < 0.5)


def with_a_drawn_validation(rng: random.Random, loop: Loop, script: Script) -> None:
    validation = [loop.samples + index for index in shuffled(rng, loop.samples // 5)]
    script.run(loop, dealt(loop, lambda epoch: shuffled(rng, loop.samples)), validation)


def in_listing_order(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, dealt(loop, lambda epoch: list(range(loop.samples))))


def all_ranks_evaluate(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, [[list(range(loop.samples))] * loop.ranks] * loop.epochs)


def with_replacement(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, dealt(loop, lambda epoch: rng.choices(range(loop.samples), k=loop.samples)))


def weighted(rng: random.Random, loop: Loop, script: Script) -> None:
    weights = [rng.random() ** 3 for _ in range(loop.samples)]
    script.run(loop, dealt(loop, lambda epoch: rng.choices(range(loop.samples), weights, k=loop.samples)))


def a_part_of_each_shuffle(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, dealt(loop, lambda epoch: shuffled(rng, loop.samples)[: loop.samples * 3 // 5]))


def repeated_augmentation(rng: random.Random, loop: Loop, script: Script) -> None:
    def order(epoch: int) -> list[int]:
        return [sample for sample in shuffled(rng, loop.samples)[: loop.samples // 3] for _ in range(3)]

    script.run(loop, dealt(loop, order))


def each_sample_twice(rng: random.Random, loop: Loop, script: Script) -> None:
    def order(epoch: int) -> list[int]:
        return [index % loop.samples for index in shuffled(rng, 2 * loop.samples)]

    script.run(loop, dealt(loop, order))


def epochs_that_end_early(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    script.run(loop, [[r[: int(len(r) * share)] for r in e] for e in epochs for share in [rng.uniform(0.3, 1)]])


def images_and_labels(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples // 2))
    epochs = files_of(epochs, lambda sample: [sample, sample + loop.samples // 2])
    script.run(loop._replace(batch=2 * loop.batch), epochs)


def each_file_twice_at_once(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples // 2))
    epochs = files_of(epochs, lambda sample: [sample, sample + loop.samples // 2, sample, sample])
    script.run(loop._replace(batch=4 * loop.batch), epochs)


def clips(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples // 10))
    script.run(loop, files_of(epochs, lambda clip: list(range(10 * clip, 10 * clip + 10))))


def ranks_started_again(rng: random.Random, loop: Loop, script: Script) -> None:
    loop = loop._replace(samples=1500, persistent=False)
    epochs, cut = halves(rng, loop)
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]], *epochs[1:]])


def easy_samples_first(rng: random.Random, loop: Loop, script: Script) -> None:
    by_difficulty = shuffled(rng, loop.samples)

    def order(epoch: int) -> list[int]:
        easy = by_difficulty[: loop.samples * (epoch + 1) // (loop.epochs - 1)]
        return rng.sample(easy, len(easy))

    script.run(loop, dealt(loop, order))


def short_first_epoch(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    script.run(loop, [[rank[: len(rank) // 4] for rank in epochs[0]], *epochs[1:]])


def validation_within_epochs(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    halves_of = [[[r[: len(r) // 2] for r in epoch], [r[len(r) // 2 :] for r in epoch]] for epoch in epochs]
    parts = [part for both in halves_of for part in both]
    script.run(loop._replace(persistent=True), parts, range(loop.samples // 5), rng.random() < 0.5)


def runs_with_one_seed(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    for _ in range(3):
        script.run(loop, epochs)


def short_pass_after_a_killed_run(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs, cut = halves(rng, loop)
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    short_first_epoch(rng, loop, script)


def folds(rng: random.Random, loop: Loop, script: Script) -> None:
    for fold in range(5):
        rest = [sample for sample in range(loop.samples) if sample % 5 != fold]
        epochs = dealt(loop, lambda epoch, rest=rest: rng.sample(rest, len(rest)))
        script.run(loop, epochs, range(fold, loop.samples, 5))


def resumed(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs, cut = halves(rng, loop)
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run(loop, [[rank[cut:] for rank in epochs[1]], *epochs[2:]])


def epoch_begun_anew(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs, cut = halves(rng, loop)
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run(loop, epochs[1:])


def run_begun_anew(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs, cut = halves(rng, loop)
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run(loop, epochs)


def early_ends_begun_anew(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    for _ in range(2):
        script.run(loop, [[r[: int(len(r) * share)] for r in e] for e in epochs for share in [rng.uniform(0.3, 1)]])


MEANT = [
    plain, ranks_apart, resumed_apart, started_again_apart, with_validation, with_a_drawn_validation,
    in_listing_order, all_ranks_evaluate, with_replacement, weighted,
    a_part_of_each_shuffle, repeated_augmentation, each_sample_twice, epochs_that_end_early, images_and_labels, clips,
    resumed, epoch_begun_anew, run_begun_anew, each_file_twice_at_once, easy_samples_first, short_first_epoch,
    validation_within_epochs, runs_with_one_seed, short_pass_after_a_killed_run, folds,
    ranks_started_again, early_ends_begun_anew,
]  # fmt: skip


def same_order(rng: random.Random, loop: Loop, script: Script) -> None:
    order = shuffled(rng, loop.samples)
    script.run(loop, dealt(loop, lambda epoch: order))


def replayed(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    script.run(loop, [*epochs[:3], epochs[0]])


def replayed_after_resume(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    script.run(loop, epochs[:2])
    script.run(loop, [epochs[0], *epochs[2:]])


def rest_replayed(rng: random.Random, loop: Loop, script: Script) -> None:
    loop = loop._replace(samples=1500)
    epochs, cut = halves(rng, loop)
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run(loop, [[rank[: len(rank) - cut] for rank in epochs[0]], *epochs[1:]])


def ranks_alike(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, [[shuffled(rng, loop.samples)] * max(2, loop.ranks) for _ in range(loop.epochs)])


def workers_alike(rng: random.Random, loop: Loop, script: Script) -> None:
    loop = loop._replace(workers=max(2, loop.workers), ranks=1)
    script.run_unsharded(loop, dealt(loop, lambda epoch: shuffled(rng, loop.samples)))


def ranks_overlap(rng: random.Random, loop: Loop, script: Script) -> None:
    half = loop.samples // 2
    script.run(loop, [[shuffled(rng, loop.samples)[:half] for _ in range(2)] for _ in range(loop.epochs)])


def samples_lost(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    script.run(loop, [epochs[0], [rank[: int(0.8 * len(rank))] for rank in epochs[1]], *epochs[2:]])


def ranks_unequal(rng: random.Random, loop: Loop, script: Script) -> None:
    loop = loop._replace(ranks=max(2, loop.ranks))
    epochs = dealt(loop, lambda epoch: shuffled(rng, loop.samples))
    script.run(loop, [[epoch[0][: int(0.8 * len(epoch[0]))], *epoch[1:]] for epoch in epochs])


def small_buffer(rng: random.Random, loop: Loop, script: Script) -> None:
    script.run(loop, dealt(loop, lambda epoch: buffered(rng, loop.samples, loop.samples // 20)))


def resume_repeats(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs, _ = halves(rng, loop)
    cut = int(0.6 * len(epochs[1][0]))
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run(loop, [[rank[cut // 2 :] for rank in epochs[1]], *epochs[2:]])


def resume_skips(rng: random.Random, loop: Loop, script: Script) -> None:
    epochs, _ = halves(rng, loop)
    cut = int(0.3 * len(epochs[1][0]))
    script.run(loop, [epochs[0], [rank[:cut] for rank in epochs[1]]])
    script.run(loop, [[rank[2 * cut :] for rank in epochs[1]], *epochs[2:]])


FAULTS = {
    same_order: "same-order-each-epoch", replayed: "epoch-replayed", replayed_after_resume: "epoch-replayed",
    rest_replayed: "epoch-replayed",
    ranks_alike: "ranks-read-alike", workers_alike: "workers-read-alike", ranks_overlap: "samples-repeated",
    samples_lost: "samples-missing", ranks_unequal: "ranks-unequal", small_buffer: "hardly-shuffled",
    resume_repeats: "resume-repeats", resume_skips: "resume-skips",
}  # fmt: skip
FOUND_AFTER = {
    same_order: 2, replayed: 4, replayed_after_resume: 4, rest_replayed: 4, ranks_alike: 2, workers_alike: 1,
    ranks_overlap: 2, samples_lost: 3, ranks_unequal: 4, small_buffer: 1, resume_repeats: 4, resume_skips: 4,
}  # fmt: skip
"""Epochs of all runs after which each fault is found at the latest: a run that goes on does so after two."""


def judged(case: Case, epochs: int = 0, **shape: int) -> list[list[str]]:
    """The kinds that are found in scripts of a case, after so many epochs (0: at any time, and in the end)."""
    found = []
    for seed in range(SCRIPTS):
        rng = random.Random(f"{case.__name__} {seed}")
        loop, script = drawn(rng)._replace(**shape), Script(rng)
        case(rng, loop, script)
        times = [script.ends[epochs - 1]] if epochs else [rng.randrange(1, script.ends[-1]), None]
        found.append(sorted({kind for at in times for kind in kinds(script.audit(at))}))
    return found


@pytest.mark.parametrize("case", MEANT, ids=lambda case: case.__name__)
def test_nothing_is_said_of_a_script_that_means_what_it_does(case: Case) -> None:
    alarms = [found for found in judged(case) if found]
    assert len(alarms) <= MOST_ALARMS, alarms


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.__name__)
def test_a_fault_is_found_and_no_other(case: Case) -> None:
    found = judged(case, FOUND_AFTER[case])
    right = [kinds_found for kinds_found in found if kinds_found == [FAULTS[case]]]
    assert len(right) >= SCRIPTS - MOST_MISTAKEN, found


@pytest.mark.parametrize(
    "case", [plain, with_validation, with_replacement, weighted, folds], ids=lambda case: case.__name__
)
def test_nothing_is_said_of_a_script_of_few_samples(case: Case) -> None:
    assert sum(map(bool, judged(case, samples=60, batch=4))) <= MOST_ALARMS


@pytest.mark.parametrize("case", [same_order, replayed, ranks_alike, workers_alike], ids=lambda case: case.__name__)
def test_faults_are_found_in_scripts_of_few_samples(case: Case) -> None:
    found = judged(case, FOUND_AFTER[case], samples=60, batch=4, ranks=1)
    assert found.count([FAULTS[case]]) >= SCRIPTS - MOST_MISTAKEN, found


def test_how_far_an_order_is_from_a_shuffle_is_a_number() -> None:
    rng = random.Random(5)

    def shuffled_through(buffer: int) -> float:
        order: list[int] = []
        waiting = list(range(buffer))
        for sample in range(buffer, 3000 + buffer):
            order.append(waiting.pop(rng.randrange(len(waiting))))
            waiting.append(sample)
        samples = np.array(order, np.int32)
        return shuffled_by(Stream(samples, np.zeros_like(samples), np.arange(len(samples))))

    assert shuffled_through(1) == 0
    assert 0 < shuffled_through(100) < 0.2 < shuffled_through(600) < 0.8
    every = np.array(rng.sample(range(3000), 3000), np.int32)
    assert shuffled_by(Stream(every, np.zeros_like(every), np.arange(len(every)))) > 0.95
