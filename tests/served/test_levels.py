"""How random an order is: DeepIO's published levels, and the entropy against orders that are counted."""

from __future__ import annotations

from math import comb, factorial, log

import numpy as np
import pytest

from mlfs.served.rounds import Rounds, entropy_share, in_rounds, published_level, rounds_for


@pytest.mark.parametrize(("memory", "published"), [(0.5, 98.54), (0.25, 96.96)])
def test_the_published_levels(memory: float, published: float) -> None:
    assert abs(100 * published_level(7600, round(1 / memory)) - published) <= 0.02
    assert published_level(7600, 1) == 1.0


def test_the_published_level_of_a_huge_data_set_is_summed_up_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = published_level(7600, 7)
    monkeypatch.setattr("mlfs.served.rounds.CHUNK", 1000)
    assert published_level(7600, 7) == pytest.approx(whole, rel=1e-12)


def test_the_entropy_is_that_of_the_orders_that_can_come_out() -> None:
    """Two rounds: three of six kept samples in each, and two of four pieces, which have one sample each."""
    orders = comb(6, 3) * factorial(5) ** 2 * comb(4, 2)
    cut = Rounds(kept=6, away=4, rounds=2, pieces=2)
    assert cut.level == pytest.approx(log(orders) / log(factorial(10)))
    assert entropy_share(np.array([10]), np.array([10]), 1) == 1.0


def test_fewer_bytes_of_buffer_make_more_rounds_and_less_randomness_down_to_the_level_that_is_wanted() -> None:
    cuts = [rounds_for(1000, 1000, 1000, room, 2, 0.0) for room in (1000, 500, 100, 10)]
    assert [cut.rounds for cut in cuts] == [1, 2, 10, 100]
    levels = [cut.level for cut in cuts]
    assert levels == sorted(levels, reverse=True)
    for wanted in (0.75, 0.8, 0.95):
        bounded = rounds_for(1000, 1000, 1000, 10, 2, wanted)
        assert bounded.level >= wanted
        assert bounded._replace(rounds=bounded.rounds + 1).level < wanted


@pytest.mark.parametrize(
    ("kept", "buffer_samples", "rounds"),
    [(0, 100, 1), (0, 5, 1), (0, 4, 250), (0, 1, 1000), (10, 4, 1), (10, 100, 1)],
)
def test_level_1_is_one_round_unless_each_piece_is_one_sample(kept: int, buffer_samples: int, rounds: int) -> None:
    cut = rounds_for(kept, 1000, 1000, buffer_samples, nodes=4, level=1.0)
    assert cut.rounds == rounds
    assert cut.level == pytest.approx(1.0)
    assert rounds == 1 or cut.away == cut.rounds * cut.pieces


def test_rounds_are_of_the_pieces_and_each_sample_comes_once() -> None:
    cut = rounds_for(30, 70, 70, 10, 2, 0.0)
    assert (cut.rounds, cut.pieces) == (7, 2)
    away = np.arange(10, 80)
    sequence, reader = in_rounds(away, cut, 2, lambda n, draw: np.random.default_rng([n, draw]).permutation(n))
    assert sorted(sequence.tolist()) == list(range(100))
    assert (reader[away] >= 0).all()
    assert (np.delete(reader, away) == -1).all()
    first = sequence[: cut.sizes[0]]
    assert len(set(first.tolist()) - set(away.tolist())) == cut.kept_sizes[0]


def test_pieces_begin_elsewhere_in_each_epoch() -> None:
    cut = rounds_for(0, 90, 90, 30, 1, 0.0)
    together = set()
    for epoch in range(5):

        def draw(n: int, what: int, epoch: int = epoch) -> np.ndarray:  # all is drawn alike but where pieces begin
            return np.roll(np.arange(n), -7 * epoch) if what == 0 else np.arange(n)

        sequence, _ = in_rounds(np.arange(90), cut, 1, draw)
        together.add(frozenset(sequence[: cut.sizes[0]].tolist()))
    assert len(together) == 5
