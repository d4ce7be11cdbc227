"""A case: a cluster, a data set, jobs, readers and faults, drawn from a seed; and smaller cases of the same kind.

Pure. In: a seed. Out: a `Case`, plain data from which the whole run follows. `simpler` takes parts of a case away, one
at a time, to find the smallest case that still fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

PAGE = 4096
LARGEST_WHOLE_BYTES = 32 * PAGE

# What happens to one get of a node, and what happens at a time. See `support.failures.world`.
OF_A_GET = ("fail", "gone", "hang", "late", "corrupt", "unstaged", "twice", "told_early", "full", "lost_answer")
AT_A_TIME = (
    "copy_lost", "outdated", "resized", "stop", "slow", "unreachable", "crash", "end_job", "install_again",
    "other_plan", "pages_lost", "server_killed",
)  # fmt: skip
# The same for agents, links and messages, in a cluster that has them. See `support.failures.agents`.
OF_AGENTS = (
    "kill_agent", "kill_agents", "agent_sleeps", "server_sleeps", "link_cut", "node_cut", "messages_garbled",
    "bytes_spoilt", "network_slow",
)  # fmt: skip
# What else happens in a cluster with agents: `others_crash` leaves one server of all.
BESIDE_AGENTS = ("copy_lost", "outdated", "resized", "pages_lost", "crash", "others_crash", "other_plan")
GETS_BESIDE_AGENTS = ("fail", "late", "corrupt", "unstaged", "twice", "told_early", "full")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, or merely happens.

    Attributes:
        kind: of `OF_A_GET`, `AT_A_TIME`, `BESIDE_AGENTS` or `OF_AGENTS`. node: whom it happens to. get: which of its
            gets. at_s: when. which: a number to choose a sample, place or job by. lasts_s: how long.
    """

    kind: str
    node: int
    get: int = 0
    at_s: float = 0.0
    which: int = 0
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Habits:
    """How the readers of a rank read.

    Attributes:
        workers: processes that take the rank's batches in turns. shuffled: how many places a read may come early.
        stop_after: reads of a worker after which it stops, 0 for none. starts_again: and then begins anew.
        seeks: now and then reads something else of the data set. think_s, hold_s: between reads; while it is open.
    """

    workers: int = 1
    shuffled: int = 0
    stop_after: int = 0
    starts_again: bool = False
    seeks: bool = False
    think_s: float = 0.001
    hold_s: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether one process reads everything in the job's order. Several workers together do not keep to it."""
        return self.workers == 1 and not (self.shuffled or self.stop_after or self.seeks)


@dataclass(frozen=True, slots=True)
class JobCase:
    """A job. order: the seed of its order. first, count: the samples that it reads. elsewhere: ranks of each node for
    which no process reads."""

    name: str
    order: int
    first: int
    count: int
    epochs: int
    batch: int
    ranks_a_node: int
    begins_s: float
    habits: Habits
    elsewhere: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stranger:
    """Somebody who reads what no job says.

    Attributes:
        walks: in the order of the samples, as `cp -r` does; else at random. a_process: samples after which another
            process of the same parent goes on, 0: it is one process.
    """

    node: int
    order: int
    reads: int
    think_s: float
    walks: bool = False
    a_process: int = 0


@dataclass(frozen=True, slots=True)
class AgentsCase:
    """The agents of a cluster.

    Attributes:
        patience_s: how long a peer may owe an answer and say nothing. landing_bytes: where samples of peers land, of
            each node. slowest_s: what goes from one node to another takes so long at most.
    """

    patience_s: float
    landing_bytes: int
    slowest_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """All of a run.

    Attributes:
        class_bytes: what each class of a node can hold.
        planned: whether nodes know who owns what, else each keeps what comes first.
        small: nodes that have a quarter of the first class, and nothing of the second.
        agents: None where nodes ask each other without any.
    """

    seed: int
    nodes: int
    sizes: tuple[int, ...]
    window_bytes: int
    class_bytes: tuple[int, ...]
    lanes: int
    hedge_s: float
    timeout_s: float
    planned: bool
    jobs: tuple[JobCase, ...]
    strangers: tuple[Stranger, ...]
    faults: tuple[Fault, ...]
    small: tuple[int, ...] = ()
    agents: AgentsCase | None = None

    def capacities_bytes(self, node: int) -> tuple[int, ...]:
        """What each class of the node can hold."""
        return (self.class_bytes[0] // 4, 0)[: len(self.class_bytes)] if node in self.small else self.class_bytes


def draw(seed: int) -> Case:
    """The case of a seed."""
    random = Random(seed)
    nodes = random.choice((1, 1, 1, 2, 2, 3, 4, 8))
    count = random.choice((4, 12, 24, 40)) if nodes < 8 else 16
    sizes = tuple(_size(random) for _ in range(count))
    pages = sum(-(-size // PAGE) for size in sizes)
    window_bytes = PAGE * random.choice((1, 2, 4, max(1, pages // 8), max(1, pages // 3), 2 * pages))
    total = sum(sizes)
    rooms = (0, total // (4 * nodes), total // nodes, 2 * total)
    class_bytes = tuple(random.choice(rooms) for _ in range(random.choice((0, 1, 1, 2))))
    jobs = tuple(_job(random, number, count, nodes) for number in range(random.choice((1, 1, 1, 2, 3))))
    strangers = tuple(
        Stranger(
            random.randrange(nodes),
            random.randrange(1 << 30),
            random.choice((5, 20, 100)),
            random.choice((0.0, 0.001, 0.01)),
            random.random() < 0.6,
            random.choice((0, 0, 1, 10)),
        )
        for _ in range(random.choice((0, 0, 1, 1, 2)))
    )
    faults = tuple(_fault(random, nodes) for _ in range(random.choice((0, 0, 1, 2, 4, 8, 25))))
    case = Case(
        seed, nodes, sizes, window_bytes, class_bytes, random.choice((1, 2, 4)), random.choice((0.05, 0.5)),
        random.choice((0.1, 1.0)), random.random() < 0.8, jobs, strangers, faults,
    )  # fmt: skip
    uneven = class_bytes and nodes > 1 and random.random() < 0.4
    return replace(case, small=tuple(node for node in range(nodes) if random.random() < 0.5)) if uneven else case


def draw_cluster(seed: int) -> Case:
    """The case of a seed for a cluster whose nodes have agents.

    Readers are patient: who waits for a place is not sent to the source before agents and desks have given up.
    """
    random = Random(f"cluster {seed}")
    nodes, count = random.choice((2, 2, 3, 4, 6)), random.choice((12, 24, 40))
    sizes = tuple(_size(random) for _ in range(count))
    total = sum(-(-size // PAGE) * PAGE for size in sizes)
    rooms = (total // (2 * nodes), 11 * total // (10 * nodes), 11 * total // (10 * nodes), 2 * total)
    class_bytes = tuple(random.choice(rooms) for _ in range(random.choice((1, 1, 2))))
    jobs = tuple(
        replace(_job(random, number, count, nodes), epochs=random.choice((2, 4, 6)))
        for number in range(random.choice((1, 1, 2)))
    )
    strangers = tuple(
        Stranger(random.randrange(nodes), random.randrange(1 << 30), 20, 0.01, True)
        for _ in range(random.choice((0, 0, 1)))
    )
    faults = [_fault_of_agents(random, nodes) for _ in range(random.choice((0, 1, 1, 2, 2, 3)))]
    faults += [_fault_beside(random, nodes) for _ in range(random.choice((0, 0, 1, 3)))]
    landing_bytes = random.choice((PAGE, 16 * PAGE, total)) if faults else 4 * total
    return Case(
        seed, nodes, sizes, max(PAGE, total // random.choice((1, 3, 8))), class_bytes, random.choice((1, 2, 4)), 30.0,
        30.0, True, jobs, strangers, tuple(faults),
        agents=AgentsCase(random.choice((0.2, 1.0)), landing_bytes, random.choice((0.0005, 0.01))),
    )  # fmt: skip


def _fault_of_agents(random: Random, nodes: int) -> Fault:
    lasts_s = random.choice((0.02, 0.1, 0.5, 3.0))
    at_s, which = random.random() * random.choice((0.1, 0.6)), random.randrange(1 << 16)
    return Fault(random.choice(OF_AGENTS), random.randrange(nodes), at_s=at_s, which=which, lasts_s=lasts_s)


def _fault_beside(random: Random, nodes: int) -> Fault:
    node, which = random.randrange(nodes), random.randrange(1 << 16)
    if random.random() < 0.5:
        return Fault(random.choice(GETS_BESIDE_AGENTS), node, get=random.randrange(30), which=which)
    at_s, lasts_s = random.random() * 0.4, random.choice((0.3, 2.0))
    return Fault(random.choice(BESIDE_AGENTS), node, at_s=at_s, which=which, lasts_s=lasts_s)


def _size(random: Random) -> int:
    kind = random.randrange(12)
    if kind == 0:
        return 0
    if kind == 1:
        return LARGEST_WHOLE_BYTES + random.randrange(PAGE)
    return random.randrange(1, 6 * PAGE)


def _job(random: Random, number: int, samples: int, nodes: int) -> JobCase:
    first = random.randrange(samples // 2)
    ranks = random.choice((1, 1, 2))
    habits = Habits(
        workers=random.choice((1, 1, 2, 3)),
        shuffled=random.choice((0, 0, 0, 2)),
        stop_after=random.choice((0, 0, 0, 5)),
        starts_again=random.random() < 0.5,
        seeks=random.random() < 0.1,
        think_s=random.choice((0.0, 0.001, 0.02)),
        hold_s=random.choice((0.0, 0.0, 0.005)),
    )
    away = tuple(rank for rank in range(ranks) if ranks > 1 and random.random() < 0.15)
    epochs = random.choice((1, 2, 3)) if nodes < 8 else random.choice((1, 2))
    return JobCase(
        f"job{number}", random.randrange(1 << 30), first, random.randrange(1, samples - first + 1), epochs,
        random.choice((1, 2, 4)), ranks, random.choice((0.0, 0.0, 0.05)), habits, away,
    )  # fmt: skip


def _fault(random: Random, nodes: int) -> Fault:
    node, which = random.randrange(nodes), random.randrange(1 << 16)
    if random.random() < 0.6:
        return Fault(random.choice(OF_A_GET), node, get=random.randrange(30), which=which)
    lasts_s = random.choice((0.05, 0.3, 2.0))
    return Fault(random.choice(AT_A_TIME), node, at_s=random.random() * 0.4, which=which, lasts_s=lasts_s)


def simpler(case: Case) -> Iterator[Case]:
    """Cases with a part less, the greatest parts first."""
    for number in range(len(case.jobs)):
        yield replace(case, jobs=case.jobs[:number] + case.jobs[number + 1 :])
    if case.strangers:
        yield replace(case, strangers=())
    for number in range(len(case.faults)):
        yield replace(case, faults=case.faults[:number] + case.faults[number + 1 :])
    if case.nodes > (1 if case.agents is None else 2):
        fewer = case.nodes - 1
        yield replace(
            case,
            nodes=fewer,
            small=tuple(node for node in case.small if node < fewer),
            strangers=tuple(one for one in case.strangers if one.node < fewer),
            faults=tuple(one for one in case.faults if one.node < fewer),
        )
    if case.small:
        yield replace(case, small=())
    if case.class_bytes:
        yield replace(case, class_bytes=case.class_bytes[:-1], small=case.small if case.class_bytes[1:] else ())
    if case.planned and case.agents is None:
        yield replace(case, planned=False)
    if case.lanes > 1:
        yield replace(case, lanes=1)
    for number, job in enumerate(case.jobs):
        for less in _simpler_job(job):
            yield replace(case, jobs=(*case.jobs[:number], less, *case.jobs[number + 1 :]))


def _simpler_job(job: JobCase) -> Iterator[JobCase]:
    if job.epochs > 1:
        yield replace(job, epochs=job.epochs - 1)
    if job.count > 1:
        yield replace(job, count=job.count // 2)
        yield replace(job, count=job.count - 1)
    if job.ranks_a_node > 1:
        yield replace(job, ranks_a_node=1, elsewhere=())
    if job.habits != Habits():
        yield replace(job, habits=Habits())
        for fields in ({"workers": 1}, {"shuffled": 0}, {"stop_after": 0}, {"seeks": False}, {"hold_s": 0.0}):
            less = replace(job.habits, **fields)
            if less != job.habits:
                yield replace(job, habits=less)
    if job.batch > 1:
        yield replace(job, batch=1)
