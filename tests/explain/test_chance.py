"""When a hypothesis is believed: bits of evidence are what they are said to be, and so is the judgement by opens."""

from __future__ import annotations

from dataclasses import replace
from math import comb, log2, perm

import pytest

from mlfs.explain.chance import SEED_BITS, bits_of_distinct, bits_of_hits
from mlfs.explain.usual import FURTHEST_LOOKED_THROUGH, LOOKED_THROUGH, POPULAR_SEEDS, usual_seeds
from mlfs.explain.variants import LIKED_SEEDS, SMALL_SEEDS
from mlfs.follow.evidence import JUDGED_OPENS, LEAST_BITS, MOST_FURTHER_OPENS
from mlfs.follow.hypothesis import Fit, Hypothesis, Origin, Ruling, beyond_chance, refuted, ruling
from mlfs.job import parse_job


@pytest.mark.parametrize(("n", "reads"), [(40, 1), (40, 17), (1000, 10), (5, 9)])
def test_distinct_reads_tell_how_many_orders_begin_otherwise(n: int, reads: int) -> None:
    assert bits_of_distinct(n, reads) == pytest.approx(log2(perm(n, min(n, reads))))


@pytest.mark.parametrize(("hits", "total", "chance"), [(10, 10, 0.1), (8, 20, 0.05), (19, 20, 0.5), (3, 4, 0.2)])
def test_hits_by_chance_are_no_likelier_than_their_bits_say(hits: int, total: int, chance: float) -> None:
    exact = sum(comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(hits, total + 1))
    assert exact <= 1.0001 * 2 ** -bits_of_hits(hits, total, chance)
    assert bits_of_hits(hits, total, chance) > 0.3 * -log2(exact)  # a bound that says something


def test_no_more_hits_than_chance_gives_are_no_evidence() -> None:
    assert bits_of_hits(5, 50, 0.1) == bits_of_hits(0, 0, 0.1) == 0.0


def test_the_choice_is_taken_off_the_evidence() -> None:
    spec = parse_job({"epochs": 1})
    variant, found = (Hypothesis(spec, origin) for origin in (Origin.VARIANT, Origin.SEARCH))
    of_many = replace(variant, choice_bits=log2(1024))
    assert beyond_chance(found.prior_bits + SEED_BITS)
    assert not beyond_chance(found.prior_bits + SEED_BITS - 1)
    assert not beyond_chance(variant.prior_bits)
    assert beyond_chance(variant.prior_bits + LEAST_BITS)
    assert not beyond_chance(of_many.prior_bits + LEAST_BITS)
    assert beyond_chance(of_many.prior_bits + LEAST_BITS + 10)
    assert 2**-LEAST_BITS < 1e-6


def confirmed(opens: int, fitting: int) -> bool:
    """Whether opens that a variant was not found by put it in force, where nothing else predicts any."""
    return ruling(Origin.VARIANT, Fit(), Fit(opens, fitting), Fit()) is Ruling.INSTALL


@pytest.mark.parametrize("opens", [0, JUDGED_OPENS - 1, JUDGED_OPENS, 40])
def test_opens_confirm_refute_or_leave_it_open(opens: int) -> None:
    verdicts = [(confirmed(opens, fitting), refuted(Fit(opens, fitting))) for fitting in range(opens + 1)]
    assert (True, True) not in verdicts
    assert verdicts[0] == (False, opens >= JUDGED_OPENS)
    assert verdicts[-1] == (opens >= JUDGED_OPENS, False)
    assert sorted(verdicts, key=lambda verdict: verdict[0] - verdict[1]) == verdicts
    assert confirmed(12, 10) and not confirmed(12, 9) and refuted(Fit(12, 2)) and not refuted(Fit(12, 3))  # noqa: PT018


def test_there_is_one_list_of_popular_seeds() -> None:
    assert len(set(POPULAR_SEEDS)) == len(POPULAR_SEEDS)
    assert POPULAR_SEEDS[0] == 42
    assert FURTHEST_LOOKED_THROUGH < LOOKED_THROUGH < len(POPULAR_SEEDS)
    assert [seed for _, seed in usual_seeds()][:8] == list(POPULAR_SEEDS[:8])
    assert [seed for _, seed in usual_seeds((77,))][:3] == [42, 77, 0]
    assert sorted(SMALL_SEEDS + LIKED_SEEDS) == sorted(POPULAR_SEEDS)
    assert 0 in LIKED_SEEDS


@pytest.mark.parametrize(
    ("further", "registered", "said"),
    [
        (Fit(JUDGED_OPENS - 1, JUDGED_OPENS - 1), Fit(), Ruling.WAITS),  # too few, however well they fit
        (Fit(12, 10), Fit(12, 3), Ruling.INSTALL),
        (Fit(12, 9), Fit(12, 3), Ruling.WAITS),
        (Fit(12, 10), Fit(12, 10), Ruling.OTHER_STANDS),  # the registered job was vouched for
        (Fit(12, 0), Fit(12, 0), Ruling.WAITS),  # neither predicts anything
        (Fit(12, 7), Fit(12, 9), Ruling.WAITS),
        (Fit(12, 10), None, Ruling.INSTALL),  # of threads: the registered job seems to predict any reads
        (Fit(MOST_FURTHER_OPENS, 48), Fit(MOST_FURTHER_OPENS, 40), Ruling.REFUTED),
    ],
)
def test_a_registered_job_is_replaced_by_what_further_opens_bear_out(
    further: Fit, registered: Fit | None, said: Ruling
) -> None:
    assert ruling(Origin.VARIANT, Fit(40, 40), further, registered) is said


@pytest.mark.parametrize(("fitting", "said"), [(10, Ruling.INSTALL), (9, Ruling.REFUTED)])
def test_a_place_among_millions_of_words_needs_no_further_opens(fitting: int, said: Ruling) -> None:
    assert ruling(Origin.PLACE, Fit(12, fitting), Fit(), Fit()) is said
