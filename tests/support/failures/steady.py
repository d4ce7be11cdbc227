"""A cluster that runs for a day of its own clock, with faults now and then: what its schedulers hold must not grow.

In: simulated hours. Out: a `Growth`. The containers of a scheduler are found by walking through its objects, so
containers that are added to the code later are counted as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from mlfs.plan.scheduler.scheduler import Scheduler
from support.failures.drawing import PAGE, Case, Fault, Habits, JobCase
from support.failures.run import Trial

NODES: Final = 4
EPOCHS: Final = 250  # of 4 nodes: 1,000 epochs of a node; another number where a test is about less
SAMPLES: Final = 32
GETS_BETWEEN_FAULTS: Final = 37
# Enough events for the run: each read takes some ten.
MOST_EVENTS: Final = 10_000_000
OURS: Final = "mlfs.plan.scheduler"


@dataclass(frozen=True, slots=True)
class Growth:
    """What was held.

    Attributes:
        hours, epochs: gone by. held: entries in all containers of all schedulers now. early, late: most of them in the
            first and in the second half.
    """

    hours: float
    epochs: int
    held: int
    early: int
    late: int

    @property
    def bounded(self) -> bool:
        """Whether the second half holds no more than the first did, give or take what is under way at a moment."""
        return self.late <= self.early + NODES * SAMPLES // 2


def steady(hours: float, say: Callable[[Growth], None] | None = None, epochs: int = EPOCHS) -> Growth:
    """Run for so many hours, with so many epochs of 4 nodes; `say` hears of each hour.

    Raises Broken for what must hold and does not.
    """
    trial = Trial(day(hours, epochs), MOST_EVENTS)
    seen: list[int] = []

    def look() -> None:
        seen.append(sum(count for node in trial.world.nodes for _, count in containers(node.scheduler)))
        if say is not None:
            say(_growth(trial, seen))

    # Orders of short epochs are computed up to 32 ahead, and let go of as others come: the last ones stay to the end.
    for hour in range(1, int(0.85 * hours) + 1):
        trial.heap.at(hour * 3600.0 - 1, look)
    trial.run()
    return _growth(trial, seen)


def day(hours: float, epochs: int) -> Case:
    """The case: a data set that does not fit, read epoch after epoch as slowly as it takes to fill the hours."""
    think_s = hours * 3600 / (epochs * SAMPLES / NODES)
    job = JobCase("day", 1, 0, SAMPLES, epochs, 4, 1, 0.0, Habits(think_s=think_s))
    kinds = ("fail", "hang", "late", "corrupt", "unstaged", "twice", "full", "lost_answer")
    faults = [
        Fault(kinds[(number + node) % len(kinds)], node, get=number * GETS_BETWEEN_FAULTS)
        for node in range(NODES)
        for number in range(1, epochs * SAMPLES // NODES // GETS_BETWEEN_FAULTS)
    ]
    timed = ("copy_lost", "outdated", "resized", "unreachable", "stop")
    faults += [
        Fault(timed[hour % len(timed)], hour % NODES, at_s=hour * 3600.0, which=hour * 7, lasts_s=60.0)
        for hour in range(1, int(hours))
    ]
    sizes = tuple(1 + (number * 977) % (4 * PAGE) for number in range(SAMPLES))
    room = sum(sizes) // (3 * NODES)
    return Case(1, NODES, sizes, 8 * PAGE, (room // 2, room // 2), 2, 0.5, 1.0, True, (job,), (), tuple(faults))


def _growth(trial: Trial, seen: list[int]) -> Growth:
    half = max(1, len(seen) // 2)
    reads = sum(reader.read for reader in trial.all_readers)
    return Growth(
        trial.heap.now_s / 3600, reads * NODES // SAMPLES, seen[-1] if seen else 0,
        max(seen[:half], default=0), max(seen[half:], default=0),
    )  # fmt: skip


def containers(scheduler: Scheduler) -> Iterator[tuple[str, int]]:
    """Every container of a scheduler that can grow, by the path to it, and how many entries it has."""
    met: set[int] = set()
    todo: list[tuple[str, Any]] = [("scheduler", scheduler)]
    while todo:
        path, value = todo.pop()
        if id(value) in met:
            continue
        met.add(id(value))
        if isinstance(value, dict | list | deque | set):
            yield path, len(value)
            inside = list(value.values()) if isinstance(value, dict) else list(value)
            todo += [(f"{path}[]", one) for one in inside]
        elif type(value).__module__.startswith(OURS):
            names = list(getattr(value, "__dict__", ())) + list(getattr(type(value), "__slots__", ()))
            todo += [(f"{path}.{name}", getattr(value, name, None)) for name in names]
