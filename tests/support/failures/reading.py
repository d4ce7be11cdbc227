"""Readers of a case: the workers of each rank, in order or not, and strangers. What they get is checked.

In: what a process reads, one sample after the other. Out: opens, reads and releases at a node; `Broken` for bytes
that no reader may get. A reader is told one of three things: the pages are in place, read the source by yourself, or an
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import DIRECT, IN_PLACE, Node
from mlfs.plan.scheduler.events import Opened, Refused, Released
from support.failures.drawing import Habits
from support.failures.world import FailingWorld


class Reader:
    """A process that reads.

    Args:
        samples: what it reads. done: called when it has read all, or its node
            is gone.

    Attributes:
        read, refused: how many samples it got, and did not get.
    """

    def __init__(
        self,
        heap: Heap,
        world: FailingWorld,
        node: Node,
        process: int,
        parent: int,
        samples: Iterator[int],
        habits: Habits,
        done: Callable[[], None],
    ) -> None:
        self._heap, self._world, self._node = heap, world, node
        self._process, self._parent, self._samples = process, parent, samples
        self._habits, self._done = habits, done
        self._over = False
        self._asks = -1  # the sample for which it waits
        self._waits = self._is_late = False  # for the next server; and its turn has come meanwhile
        self.read = self.refused = 0

    def go_on(self) -> None:
        """Open the next sample, or be done."""
        if self._over or self._waits:
            self._is_late = self._waits  # else it is over
            return
        sample = next(self._samples, -1)
        if sample < 0 or not self._node.lives:
            self.stop()
            return
        self._open(sample)

    def _open(self, sample: int) -> None:
        least, self._asks = self._world.version[sample], sample
        if self._node.open(sample, self._process, self._parent, lambda told: self._told(sample, least, told)):
            self._in_place(sample, least)

    def wait(self) -> None:
        """Its node's server was killed: the kernel keeps what it asks."""
        self._waits = True

    def ask_again(self, node: Node) -> None:
        """Another server has taken over."""
        self._node, self._waits, late, self._is_late = node, False, self._is_late, False
        if not self._over and self._asks >= 0:
            self._open(self._asks)
        elif late:
            self.go_on()

    def stop(self) -> None:
        """Stop reading."""
        if not self._over:
            self._over = True
            self._done()

    def _told(self, sample: int, least: int, told: int) -> None:
        self._asks = -1
        if told > 0:
            self.refused += 1
            self._world.check_refusal(self._node, sample)
            self._node.soon(Refused(sample, self._process))
            self._heap.at(self._heap.now_s + self._habits.think_s, self.go_on)
            return
        self._node.soon(Opened(sample, self._process, self._heap.now_s))
        if told == IN_PLACE:
            self._in_place(sample, least)
        else:  # DIRECT or UNSTAGED: the reader reads by itself, and what the source gives is never outdated
            if told == DIRECT:
                self._world.read_from_source[sample] += 1
            self._holds(sample)

    def _in_place(self, sample: int, least: int) -> None:
        """The sample is in place: its pages must be there, no older than the version that the node knew at the open."""
        self._world.check_pages(self._node, sample, least)
        self._holds(sample)

    def _holds(self, sample: int) -> None:
        self._asks = -1
        self.read += 1
        if self._habits.hold_s:
            self._heap.at(self._heap.now_s + self._habits.hold_s, self._closes, sample, self._node)
        else:
            self._closes(sample, self._node)

    def _closes(self, sample: int, node: Node) -> None:
        if node.lives:
            node.soon(Released(sample))
        self._heap.at(self._heap.now_s + self._habits.think_s, self.go_on)


def worker_samples(
    epochs: Sequence[Sequence[int]], batch: int, worker: int, habits: Habits, random: Random
) -> Iterator[int]:
    """What a worker of a rank reads: of each epoch every `workers`-th batch, in the order and as far as its habits are.

    Args:
        epochs: the rank's stream, by epoch.
    """
    mine: list[int] = []
    for stream in epochs:
        batches = [stream[start : start + batch] for start in range(0, len(stream), batch)]
        mine += [sample for chosen in batches[worker :: habits.workers] for sample in chosen if sample >= 0]
    if habits.shuffled:
        keyed = sorted((at - random.randrange(habits.shuffled + 1), at) for at in range(len(mine)))
        mine = [mine[at] for _, at in keyed]
    if habits.seeks:
        every = sorted({sample for stream in epochs for sample in stream if sample >= 0})
        mine = [random.choice(every) if every and random.random() < 0.3 else sample for sample in mine]
    return iter(mine[: habits.stop_after] if habits.stop_after else mine)
