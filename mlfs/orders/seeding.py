"""Seeds the generator of each epoch: it goes on from the epoch before, or is made anew from a number.

In: a rule as a job's `seeding` has it, such as "seed+epoch". Out: the generator that an epoch begins with. Called by
`mlfs.orders.composed`.

| rule | the generator of an epoch | in a script |
| --- | --- | --- |
| goes-on | that of the epoch before, as it was left | seeded once, before the first epoch |
| same | made anew from the seed | `default_rng(seed).permutation(n)` in each epoch |
| seed+epoch | made anew from that number, or from another sum | `manual_seed(seed + epoch)` |
| [seed,epoch] | made anew from the sequence of both | `default_rng([seed, epoch])` |
| fold-in | jax.random.fold_in(key, epoch) | jax, tf.data |
| split | key, subkey = jax.random.split(key): the subkey | jax |
| drawn | made anew from a number that the generator of the epoch before draws | fastai |

A sum has terms of seed, epoch, rank, worker and numbers, each with a factor: seed+epoch-1, 1000*seed+epoch,
seed+epoch+rank. A "fold-in" is jax's, or the new seeds that a shuffle of tf.data draws in each pass.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

RULES: Final = ("goes-on", "same", "[seed,epoch]", "fold-in", "split", "drawn")
OF_KEYS: Final = ("same", "fold-in", "split")
_TERM: Final = re.compile(r"([+-]?)(?:(\d+)\*)?(seed|epoch|rank|worker|\d+)(?:\*(\d+))?")
_LARGEST: Final = 1 << 64


class Seeding(NamedTuple):
    """A rule, taken apart.

    Attributes:
        rule: one of RULES, or "linear".
        seed, epoch, rank, worker, constant: factors of the linear rule.
    """

    rule: str
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    worker: int = 0
    constant: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether an epoch's generator follows from that of the epoch before."""
        return self.rule in ("goes-on", "split", "drawn")

    def number(self, seed: int, epoch: int, rank: int, worker: int = 0) -> int:
        """The number that an epoch's generator is made from, by a linear rule."""
        return self.seed * seed + self.epoch * epoch + self.rank * rank + self.worker * worker + self.constant


GOES_ON: Final = Seeding("goes-on")
SAME: Final = Seeding("same")
RESEEDED: Final = Seeding("linear", seed=1, epoch=1)
BY_EPOCH: Final = Seeding("linear", epoch=1)
"""The usual ones."""


def seeding_of(text: str) -> Seeding | None:
    """The rule that a text says; None where it says none."""
    text = re.sub(r"\s", "", text)
    if text in RULES:
        return Seeding(text)
    factors, at = {"seed": 0, "epoch": 0, "rank": 0, "worker": 0, "constant": 0}, 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None or (at and not term[1]):
            return None
        sign, before, name, after = term.groups()
        number = int(before or 1) * int(after or 1) * (-1 if sign == "-" else 1)
        if name.isdigit():
            number, name = number * int(name), "constant"
        factors[name] += number
        at = term.end()
    if (not factors["seed"] and not factors["epoch"]) or any(abs(factor) >= _LARGEST for factor in factors.values()):
        return None
    return Seeding("linear", **factors)
