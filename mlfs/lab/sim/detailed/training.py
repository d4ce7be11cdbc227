"""The training job of a simulated cluster: each rank's loader reads its batches, all ranks compute step by step.

In: what each rank reads in each step, nodes that serve it. Out: when each step ended. A loader opens the samples of a
batch one after the other, without a pause while they are in place; the batch is then preprocessed, and computed when
all ranks are through with the step before (bulk-synchronous, as in the fast estimate's clock). A loader is at most
`LOADER_STEPS` steps ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlfs.lab.sim.detailed.cluster import Pipe
from mlfs.lab.sim.detailed.heap import Heap
from mlfs.lab.sim.detailed.node import IN_PLACE, Node
from mlfs.plan.scheduler.events import Opened, Released

# Batches that a loader has read and that are not computed: torch's DataLoader keeps two for each of its workers.
LOADER_STEPS = 2
# A parent's process number for the readers of a node: no rank has it.
PARENT = 1_000_000


class Steps:
    """The barrier after each step."""

    def __init__(self, heap: Heap, ranks: int, steps: int, over: Callable[[int], None]) -> None:
        self._heap, self._ranks, self._over = heap, ranks, over
        self.ends_s = [0.0] * (steps + 1)
        self._ready: list[list[tuple[float, float]]] = [[] for _ in range(steps)]
        self.done = 0

    def ready(self, step: int, compute_s: float) -> None:
        """A rank has its batch of a step."""
        self._ready[step].append((self._heap.now_s, compute_s))
        while self.done < len(self._ready) and len(self._ready[self.done]) == self._ranks:
            before = self.ends_s[self.done]
            end = max(max(before, ready_s) + compute_s for ready_s, compute_s in self._ready[self.done])
            self._ready[self.done] = []
            self.done += 1
            self.ends_s[self.done] = end
            self._heap.at(end, self._over, self.done)


class Rank:
    """One rank's loader.

    Args:
        batches: the samples of a step, by step. steps: the barrier. compute_s_per_byte, preprocess: of this rank.
        read: told of each read.

    Attributes:
        times_s: by step, how long its batch took to load and preprocess, and how long it computes.
    """

    def __init__(
        self,
        node: Node,
        process: int,
        heap: Heap,
        batches: Callable[[int], Sequence[int]],
        steps: Steps,
        preprocess: Pipe,
        compute_s_per_byte: float,
        read: Callable[[Node, int], None],
    ) -> None:
        self._node, self._process, self._heap, self._batches, self._steps = node, process, heap, batches, steps
        self._preprocess, self._compute_s_per_byte, self._read = preprocess, compute_s_per_byte, read
        self._step, self._at = 0, 0
        self._batch = batches(0)
        self._allowed = 0
        self._began_s = 0.0
        self.times_s: list[tuple[float, float]] = []

    def may_read(self, steps: int) -> None:
        """Batches before this step may be read."""
        paused = self._step >= self._allowed
        self._allowed = steps
        if paused and self._step < steps:
            self._began_s = self._heap.now_s
            self._go_on()

    def _told(self, how: int) -> None:
        assert how == IN_PLACE, "in a cluster without failures nobody is refused"
        self._node.soon(Opened(self._batch[self._at], self._process, self._heap.now_s))
        self._take()
        self._go_on()

    def _take(self) -> None:
        sample = self._batch[self._at]
        self._at += 1
        self._read(self._node, sample)
        self._node.soon(Released(sample))

    def _go_on(self) -> None:
        """Read until a sample is not in place, or no batch may be read."""
        while self._step < self._allowed:
            while self._at < len(self._batch):
                if not self._node.open(self._batch[self._at], self._process, PARENT, self._told):
                    return
                self._take()
            size = sum(map(self._node.sizes.__getitem__, self._batch))
            through = self._preprocess.through_at(self._heap.now_s, size)
            compute_s = size * self._compute_s_per_byte
            self._heap.at(through, self._steps.ready, self._step, compute_s)
            self.times_s.append((through - self._began_s, compute_s))
            self._began_s = self._heap.now_s
            self._step, self._at = self._step + 1, 0
            self._batch = self._batches(self._step)
