"""Watches a job's reads for what they tell of its loader: batch size, workers, and how far ahead the workers read.

Pure; times are passed in. In: reads and what they were matched to. Out: the loader's shape and depth. Used by
`mlfs.follow.job`; one object is for one run of the script. The matcher learns the shape (`mlfs.follow.learning`); the
depth follows from the first reads of each epoch (`mlfs.follow.depth`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfs.follow.by_sample import NO_PID
from mlfs.follow.depth import DepthWatch
from mlfs.follow.epoch_index import Match
from mlfs.follow.epochs_at_hand import EpochsAtHand
from mlfs.follow.evidence import UNTIMED
from mlfs.follow.job_statistics import LoaderStatistics, loader_of
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import Shape
from mlfs.follow.worker_stream import Stretch
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams

TORCH_PREFETCH_FACTOR = 2
"""What torch's DataLoader takes where nobody says anything (torch/utils/data/dataloader.py)."""


class LoaderWatch:
    """Learns batch size, workers and prefetch depth from a job's reads.

    Args:
        matcher: matches the reads of this run of the script.
        from_start: whether the first epoch's first reads are among those that are watched.
        shape_is_learned: whether the matcher's shape was learned in a run before.
    """

    def __init__(
        self,
        spec: JobSpec,
        streams: JobStreams,
        epochs: EpochsAtHand,
        matcher: StreamMatcher,
        from_start: bool = True,
        shape_is_learned: bool = False,
    ) -> None:
        self._spec = spec
        self._streams = streams
        self._epochs = epochs
        self._matcher = matcher
        self._assumed = None if shape_is_learned else matcher.shape  # told, or taken for granted until reads tell
        self._depth = DepthWatch(spec.start_epoch)
        if not from_start:
            self._depth.missed()
        self._watched = self._positions()

    def read(self, sample: int, process: int, match: Match | None, at_s: float) -> None:
        """A sample was read: an epoch's first reads tell how far ahead the workers read."""
        watch = self._depth
        if watch.epoch < 0:
            return
        if at_s == UNTIMED or process == NO_PID:
            watch.missed()
            return
        if match is not None:
            self._matched(match.rank_index, (match.position,), process, (at_s,))
        elif watch.epoch == self._spec.start_epoch:  # the loader's shape is not known yet
            index = self._epochs.first
            code = index.code.item(sample) if index is not None else -1
            if index is not None and code >= 0:
                watch.opened(code // index.length, (code % index.length - index.begin,), process, (at_s,))

    def follow(self, stretch: Stretch) -> None:
        """A process went on as predicted."""
        if self._depth.epoch < 0:
            return
        if UNTIMED in stretch.times:
            self._depth.missed()
        self._matched(stretch.rank_index, stretch.positions, stretch.process, stretch.times)

    def _matched(self, rank_index: int, positions: Sequence[int], process: int, times: Sequence[float]) -> None:
        """Reads of one epoch, in the order of their positions."""
        base, begin, end = self._watched
        if positions[0] >= end:
            self._depth.next_epoch(self._depth.epoch + 1, *self._shape_and_length())
            base, begin, end = self._watched = self._positions()
        if base <= positions[0] < end:
            self._depth.opened(rank_index, [position - begin for position in positions], process, times)

    def _positions(self) -> tuple[int, int, int]:
        """The positions of the watched epoch: where it begins, where its reading begins, where it ends; nothing lies in
        none."""
        timeline, epoch = self._epochs.timeline, self._depth.epoch
        if epoch < 0:
            return 0, 0, 0
        base = timeline.base(epoch)
        return base, base + timeline.begin(epoch), timeline.base(epoch + 1)

    @property
    def shape_is_learned(self) -> bool:
        """Whether reads have told the loader's shape: it is another one than was told or taken for granted."""
        return self._matcher.shape != self._assumed

    @property
    def batch_files(self) -> int:
        """Files of a rank's batch: as reads have told, else as registered. One process alone tells no batch."""
        shape = self._matcher.shape
        return shape.batch if shape.workers != 1 and self.shape_is_learned else self._streams.batch_files

    @property
    def hands_ahead(self) -> bool:
        """Whether a worker is given another batch before the training loop has taken the one before."""
        learned = self._depth.depth(*self._shape_and_length()).exact
        return (learned or self._spec.prefetch_factor or TORCH_PREFETCH_FACTOR) > 1

    @property
    def reader_trains(self) -> bool:
        """Whether the training process reads by itself: it was registered so, and one process reads for each rank."""
        return self._spec.num_workers == 0 and self._matcher.shape.workers == 1

    def statistics(self, inferred: bool) -> LoaderStatistics:
        """All that is known of the loader. Args: inferred: whether nobody registered the job."""
        shape, length = self._shape_and_length()
        depth, slack = self._depth.depth(shape, length), self._matcher.shape.slack
        return loader_of(
            self._spec, inferred, self._streams.files_per_sample, shape, depth, slack, self.shape_is_learned
        )

    def _shape_and_length(self) -> tuple[Shape, int]:
        """The loader's shape, its batch 0 while that is not known, and how many samples of the watched epoch it
        reads."""
        shape, epoch = self._matcher.shape, self._depth.epoch
        if shape.workers == 1:
            is_registered = "batch_size" in self._spec.model_fields_set
            shape = shape._replace(batch=self._streams.batch_files if is_registered else 0)
        if epoch < 0:
            return shape, self._matcher.stream.length
        return shape, self._streams.length(epoch) - self._epochs.timeline.begin(epoch)
