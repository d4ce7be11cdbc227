"""Where the next epoch of a job begins whose main process crops and flips its images at random.

In: the job's data set and loader, where its generator's words began the epochs before. Out: the place at which the
next one begins, before anything of it is read. Used by both cases of `mlfs.explain`; `mlfs.explain.crops` computes.

What an epoch drew is known once the next one has begun: if crops and flips explain it to the word, the next epoch's
place follows in the same way. Of the first epoch nothing is known; then the usual crops may be taken for granted by
whoever has reason to, and is ready for them to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlfs.explain.crops import USUAL, learned, may_be_crops, place_after
from mlfs.explain.image_sizes import MOST_IMAGES, ImageSizes
from mlfs.job import JobSpec
from mlfs.orders.layouts.layout import SampleIds
from mlfs.orders.placed import PlacedOrder
from mlfs.orders.streams import JobStreams
from mlfs.orders.torch_generator import Tape


class NextPlace(NamedTuple):
    """Where an epoch begins.

    Attributes:
        words: drawn before it; where nothing is proved, those of others than augmentation are missing.
        is_proved: whether the epoch before the last one has shown that the job draws so.
    """

    words: int
    is_proved: bool


class Augmentation:
    """See the module.

    Args:
        spec: of a job of one rank that draws from torch's default generator. sample_ids: its files by sample.
        seed: of that generator. own_words: those that the loader takes from it before the epoch's first image.
    """

    def __init__(self, sizes: ImageSizes, spec: JobSpec, sample_ids: SampleIds, seed: int, own_words: int) -> None:
        self._sizes = sizes
        self._spec = spec
        self._ids = sample_ids
        self._tape = Tape(seed)
        self._own_words = own_words

    def next_place(self, places: Sequence[int]) -> NextPlace | None:
        """See the module; None where it cannot be told. A worker thread's work: it looks into each image.

        Args:
            places: words drawn before the last epochs, one after the other; at least one.
        """
        if len(self._ids) > MOST_IMAGES:
            return None
        begin, last = places[-1] + self._own_words, self._entries_from(places[-1])
        if len(places) < 2:
            sizes = self._sizes.of(last)
            return None if sizes is None else NextPlace(place_after(self._tape, begin, sizes, USUAL), False)
        begin_before, before = places[-2] + self._own_words, self._entries_from(places[-2])
        if not may_be_crops(len(before), places[-1] - begin_before):
            return None  # no image need be looked into
        sizes_before, sizes = self._sizes.of(before), self._sizes.of(last)
        if sizes_before is None or sizes is None:
            return None
        drawn = learned(self._tape, begin_before, sizes_before, places[-1])
        if drawn is None:
            return None
        return NextPlace(place_after(self._tape, begin, sizes, drawn.crops) + drawn.after, True)

    def _entries_from(self, place: int) -> list[int]:
        """The files of the epoch that begins there, in its order."""
        order = PlacedOrder(self._spec, len(self._ids), {0: place}, 0)
        entries: list[int] = JobStreams(self._spec, self._ids, order).epoch_ids(0, 0).tolist()
        return entries
