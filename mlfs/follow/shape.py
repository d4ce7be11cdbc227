"""The shape of a loader: how the processes of a rank share the rank's stream.

Pure. In: batch size, workers, and how strictly they keep to their order. Out: whose turn a place in the stream is.
Used by everything in `mlfs.follow`; learned from the opens by `mlfs.follow.learning`.

torch/utils/data/dataloader.py, _try_put_index: a DataLoader with W workers and batches of B hands batch b to worker
b mod W. So worker w reads exactly the batches w, w + W, w + 2 W, ...: that is its worker stream. A *turn* is an index
into a worker stream. A process that reads a whole rank's stream by itself is the only worker, and its turns are the
places of the rank's stream.
"""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """How the processes of a rank share its stream.

    Attributes:
        batch: positions of a batch (of files, where a sample is several).
        workers: processes that take batches in turns; 0: whoever is free takes the next batch (in_order=False, pools).
        slack: how many turns early an open may come, plus 1: threads take the next sample whenever they are free. With
            `workers` 0: how far beyond the rank's oldest unread position a batch may begin, in positions.
    """

    batch: int = 1
    workers: int = 1
    slack: int = 1


def worker_and_turn(shape: Shape, x: int) -> tuple[int, int]:
    """The worker that reads a place, and the turn at which it does.

    Args:
        x: how many places lie between the beginning of the epoch's reading and the place.
    """
    if shape.workers <= 1:
        return 0, x
    batch, within = divmod(x, shape.batch)
    round_, worker = divmod(batch, shape.workers)
    return worker, round_ * shape.batch + within


class RankStream(NamedTuple):
    """A rank's stream, as far as a registration says how it is read.

    Attributes:
        length: samples of the first epoch; tolerances scale with it.
        batch: positions of a batch, as far as known: where to look first.
        single: whether a batch of 1 that workers share is credible (see `mlfs.follow.learning`).
        one_rank: whether a process reads for one rank only, as torch's do.
        files: of a sample. A script may open the same one of several each time.
    """

    length: int
    batch: int = 1
    single: bool = True
    one_rank: bool = False
    files: int = 1

    @property
    def shows_ranks(self) -> bool:
        """Whether a process that leaves out as many places with most reads shows that there are more ranks."""
        return not self.single and self.files == 1


class LearnedLoader(NamedTuple):
    """A loader as its reads show it: its shape, and how far behind its rank a position may be read."""

    shape: Shape
    lag: int
