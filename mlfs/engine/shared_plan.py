"""Carries out what `mlfs.plan.cluster_plan` decides: one plan for all nodes, in threads, messages and events.

In: the nodes that joined, those that are lost or back, the jobs to plan with, what the servers of other nodes say. Out:
plans for the scheduler, messages for the other servers. Reads are counted in the worker pool `plan`, which has a thread
of its own; those of a job once, as long as this node plans for all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.planner import Kept, Planner, epochs_worth_counting
from mlfs.engine.runner import Runner
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.job.ranks import ranks_in
from mlfs.plan import cluster_plan as p
from mlfs.plan.epoch_readers import Readers
from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.holdings import from_pieces, pieces
from mlfs.plan.members import Holders, Members, OwnShare, Shares, kept_by_all, warning
from mlfs.plan.placement import NOWHERE
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.keeping import Keeping, Plan

log = logging.getLogger("mlfs.peers")

# The knowledge of who reads what takes at most so much memory for a job: else fewer epochs are looked at.
MOST_READERS_BYTES = 256 << 20

Tell = Callable[[Mapping[str, Any], int | None], None]
"""Says something to the server of a node, None: of all others."""
Flags = npt.NDArray[np.bool_]


class SharedPlan:
    """The plan that this node goes by, made here or fetched from the node that plans.

    Without others, before `begin` and after `end`, plans are this node's own.

    Args:
        step: takes events for the scheduler. keeping: what this node holds, and takes over from others.
        blocks: the samples' sizes, and which files are in blocks. jobs: those of this mount, whose own reads the
            planner may count.
    """

    def __init__(
        self,
        planner: Planner,
        runner: Runner,
        clock: Callable[[], float],
        step: Callable[..., None],
        keeping: Keeping,
        blocks: FileBlocks,
        jobs: MountJobs,
    ) -> None:
        self._planner = planner
        self._counts = ReadCounts(blocks, runner, planner.kept)
        self._counted_for = -1  # the node that plans, as far as was counted
        self._runner = runner
        self._clock = clock
        self._step = step
        self._keeping = keeping
        self._blocks = blocks
        self._jobs = jobs
        self._cluster: p.ClusterPlan | None = None
        self._tell: Tell = lambda _, __: None
        self._early: list[Callable[[], None]] = []  # what has happened before this node had joined
        self._held: tuple[p.PlanId, Flags] | None = None  # what this node held when that plan was made
        self._making = trio.CancelScope()
        self._changed = trio.Event()
        self._waiting = 0

    # -- what others may know

    @property
    def members(self) -> Members | None:
        """The nodes that have joined, None without any."""
        return None if self._cluster is None else self._cluster.members

    @property
    def planned(self) -> bool:
        """Whether the first plan has begun."""
        return self._cluster is not None and self._cluster.begun is not None

    @property
    def under_way(self) -> int:
        """Plans that this node waits for."""
        return int(self._cluster is not None and self._cluster.under_way)

    @property
    def planner(self) -> int:
        """The node that plans for all, -1 where this one is alone."""
        return -1 if self._cluster is None else self._cluster.planner

    @property
    def planned_otherwise(self) -> frozenset[str]:
        """See `ClusterPlan.planned_otherwise`; none where this node is alone."""
        return frozenset() if self._cluster is None else self._cluster.planned_otherwise

    @property
    def view(self) -> tuple[int, tuple[int, ...]]:
        """How often nodes went for good or came back, and which are away, as far as the plan goes by it."""
        begun = None if self._cluster is None else self._cluster.begun
        return (0, ()) if begun is None else (begun.views, begun.target.away)

    # -- what happens

    async def begin(self, members: Members, tell: Tell, patience_s: float) -> None:
        """Plan with the nodes that this one has joined. Returns when it goes by their plan, or they are gone."""
        self._tell = tell
        lost_for_good_s = p.PATIENCES * patience_s
        cluster = self._cluster = p.ClusterPlan(members, self._blocks.rows.first, lost_for_good_s, self._clock())
        self._go_on()
        early, self._early = self._early, []
        for happens in early:
            happens()
        while self._cluster is cluster and cluster.begun is None:
            await self._changed.wait()

    def end(self) -> None:
        self._cluster = self._held = None
        self._early.clear()
        self._counts.forget()
        self._go_on()
        self._planner.share(None, self._jobs.jobs.values())

    def want(self, name: str, key: str, job: JobRun | None) -> None:
        """Plan with this job from now on, in place of another one of its name. Args: job: None: this node cannot follow
        it."""
        if (cluster := self._cluster) is None:
            self._early.append(partial(self.want, name, key, job))
        else:
            cluster.want(name, key, job, job is not None and is_counted(job.spec, cluster.members))
            self._go_on()

    def want_no_more(self, name: str) -> None:
        """The job has ended, or reads refute the order."""
        if self._cluster is None:
            self._early.append(partial(self.want_no_more, name))
        else:
            self._cluster.want_no_more(name)
            self._go_on()

    async def begun_with(self, name: str, key: str) -> Sequence[int]:
        """Wait until a plan has begun that is made with the job of that key.

        Returns the nodes that were not ready for it then; the planner, where that does not plan with it in time.
        """
        since_s, late = self._clock(), None
        self._waiting += 1
        try:
            while (cluster := self._cluster) is not None and (late := cluster.late(name, key, since_s)) is None:
                await self._changed.wait()
        finally:
            self._waiting -= 1
        return late or ()

    def lose(self, nodes: Collection[int]) -> None:
        """Note that nodes do not answer: nobody waits for them."""
        if self._cluster is not None:
            self._cluster.lose(nodes)
            self._go_on()

    def back(self, node: int) -> None:
        """Note that a node answers again: it may have missed what was said."""
        if self._cluster is not None:
            self._cluster.back(node)
            self._go_on()

    def look(self) -> None:
        """Now and then: time passes, and who waits in vain goes on without."""
        if self._cluster is not None:
            self._cluster.hold(self._cluster.adopted, self._keeping.take_over())
            self._cluster.look(self._clock(), self._waiting > 0)
            self._go_on()

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """The server of another node says something. Raises ValueError or TypeError for what it cannot have said."""
        if self._cluster is None:
            self._early.append(partial(self.hear, node, value))
            return
        try:
            self._cluster.hear(node, value)
        finally:
            self._go_on()

    def adopt(self) -> None:
        """A sample is asked for by whoever goes by the newest plan: so does this node from now on, if it has it."""
        if self._cluster is not None and self._cluster.adopt():
            self._go_on()

    def plan_made(self, plan: Plan | None) -> None:
        """A new plan of what this node keeps; samples that nodes have got since they told what they hold lie there."""
        self._step(e.Planned(plan))
        for owns in self._cluster.owned_besides if self._cluster is not None else ():
            self._owns(owns)

    # -- carrying out

    def _go_on(self) -> None:
        """Something has happened: do what is to be done then, and have those who wait look again."""
        if (cluster := self._cluster) is None:
            self._making.cancel()
        else:
            while commands := cluster.take():
                for command in commands:
                    try:
                        self._carry_out(cluster, command)
                    except Exception:  # a bug: it costs what the command is about, never the mount
                        log.exception("a command of the cluster's plan could not be carried out: %r", type(command))
            if cluster.planner != self._counted_for:
                self._counted_for = cluster.planner
                self._counts.forget()  # another node may plan now: what was counted for the one before is of no use
        self._changed.set()
        self._changed = trio.Event()

    def _carry_out(self, cluster: p.ClusterPlan, command: p.Command) -> None:
        match command:
            case p.Tell(value, to):
                self._tell(value, to)
            case p.Gather(of):
                self._gather(cluster, of)
            case p.Unpack():
                self._unpack(cluster, command)
            case p.CountReaders(of):
                self._make(cluster, of, partial(self._count, cluster, command))
            case p.FindOwners(of):
                self._make(cluster, of, partial(self._share, cluster, command))
            case p.GiveUp():
                self._making.cancel()
            case p.Adopt(of, share):
                self._planner.share(share, self._jobs.jobs.values())
                self.plan_made(share.plan)
                cluster.hold(of, self._got_since(of, share.plan))
            case p.Owns():
                self._owns(command)
            case p.Notice(text):
                log.warning(text)

    def _got_since(self, of: p.PlanId, plan: Plan) -> npt.NDArray[np.int64]:
        """The samples that this node has got since it looked what it holds for that plan."""
        held = self._keeping.holds()
        if self._held is not None and self._held[0] == of:
            held &= ~self._held[1]
        assert plan.owner is not None
        got = np.flatnonzero(held & ((plan.owner >= 0) | (plan.classes == NOWHERE)))
        return got[got < self._blocks.own_from]

    def _owns(self, owns: p.Owns) -> None:
        assert self._cluster is not None
        self._step(e.HeldBy(-1 if owns.node == self._cluster.members.own else owns.node, owns.samples))

    def _gather(self, cluster: p.ClusterPlan, of: p.PlanId) -> None:
        held = self._keeping.holds()
        self._held = of, held

        def then(text: list[str] | None, error: BaseException | None) -> None:
            if cluster is self._cluster:
                if error is not None or text is None:
                    log.error("what lies here is not told", exc_info=error)
                    cluster.failed(of)
                else:
                    cluster.gathered(of, text)
                self._go_on()

        self._runner.start("plan", pieces, np.packbits(held).tobytes(), then=then)

    def _unpack(self, cluster: p.ClusterPlan, command: p.Unpack) -> None:
        of, members, parts, by_what = command
        samples = self._blocks.rows.first

        def unpack() -> OwnShare:
            shares = members.unpack(from_pieces(parts, members.packed_bytes(samples)), samples)
            return members.own_share(shares, self._blocks.shared_sizes(), by_what)

        def then(share: OwnShare | None, error: BaseException | None) -> None:
            if error is not None:
                log.error("the plan of node %d is not understood", of.by, exc_info=error)
            if cluster is self._cluster:
                cluster.unpacked(of, share)
                self._go_on()

        self._runner.start("plan", unpack, then=then)

    def _make(self, cluster: p.ClusterPlan, of: p.PlanId, work: Callable[[], Awaitable[None]]) -> None:
        """Compute something for the plan that this node makes, until that is given up."""
        scope = self._making = trio.CancelScope()

        async def make() -> None:
            with scope:
                try:
                    await work()
                except Exception:  # a bug, or no thread: it costs reads of the source, never the mount
                    log.exception("who owns what cannot be planned: it stays as it is")
                    cluster.failed(of)
                if cluster is self._cluster:
                    self._go_on()

        trio.lowlevel.spawn_system_task(make)

    async def _count(self, cluster: p.ClusterPlan, command: p.CountReaders) -> None:
        await self._counts.count(command.members, command.jobs)
        cluster.counted(command.of)

    async def _share(self, cluster: p.ClusterPlan, command: p.FindOwners) -> None:
        of, members, holdings = command
        holder = await self._runner.run("plan", holdings.holders, members.away)
        shares, by_what = await self._counts.share(members, holder)
        packed = await self._runner.run("plan", members.pack, shares)
        text = await self._runner.run("plan", pieces, packed)
        share = await self._runner.run("plan", members.own_share, shares, self._blocks.shared_sizes(), by_what)
        cluster.shared(of, share, text, by_what)


# -- which node reads what, and who owns it by that


class _Counted(NamedTuple):
    """A job, the node that reads each sample in each epoch, and on whose keeping its order rests, if mlfs serves it."""

    job: JobRun
    readers: npt.NDArray[np.unsignedinteger[Any]]
    kept_at: Holders | None


def is_counted(spec: JobSpec, members: Members) -> bool:
    """Whether it is known which node reads what of a job, and whether that lasts for more than an epoch."""
    return spec.epochs - spec.start_epoch > 1 and (members.divides(spec.world_size) or spec.nodes is not None)


def node_of_rank(spec: JobSpec, members: Members) -> dict[int, int]:
    """By rank, the number of the node that runs it: as the nodes of a served order say, else as launchers deal ranks;
    ranks of which nobody knows it are missing."""
    deal = {rank: node for node in members.nodes for rank in members.ranks(spec.world_size, node)}
    node_of = deal if members.divides(spec.world_size) else {}
    named = {rank: node.node for node in spec.nodes or () for rank in ranks_in(node.ranks)}
    return node_of | {rank: node for rank, node in named.items() if node in members.nodes}


class ReadCounts:
    """The counts of all jobs that are planned with, and the shares that are made of them."""

    def __init__(self, blocks: FileBlocks, runner: Runner, kept: Kept) -> None:
        self._blocks, self._kept = blocks, kept
        self._sizes = blocks.sizes[: blocks.rows.first]
        self._runner = runner
        self._counted: dict[str, _Counted] = {}
        self._warned: set[str] = set()

    def forget(self) -> None:
        """Forget what was counted for plans, as another node plans."""
        self._counted.clear()

    async def count(self, members: Members, jobs: Mapping[str, JobRun]) -> None:
        """Count what is new of the jobs that the next plan is for, and forget all others."""
        self._counted = {name: one for name, one in self._counted.items() if jobs.get(name) is one.job}
        for name, job in jobs.items():
            if name in self._counted:
                continue
            try:
                readers = await self._who_reads(job, members)
                kept_at = None
                if job.spec.serve is not None:
                    kept_at = await self._runner.run("plan", job.streams.kept_at, len(self._sizes))
                self._counted[name] = _Counted(job, readers, kept_at)
            except Exception as error:  # an order file that is gone: the job goes on without a plan
                log.warning("job %s: not planned: %s", name, error)
        await self._warn_of_room(members)

    async def _who_reads(self, job: JobRun, members: Members) -> npt.NDArray[np.unsignedinteger[Any]]:
        epochs = epochs_worth_counting(job.spec, max(2, MOST_READERS_BYTES // max(1, len(self._sizes))))
        readers = Readers(len(self._sizes), len(members.nodes), len(epochs))
        node_of = {rank: members.nodes.index(node) for rank, node in node_of_rank(job.spec, members).items()}
        for epoch in epochs:
            streams = [
                (at, await self._runner.run("plan", self._kept, job.streams, epoch, rank))
                for rank, at in node_of.items()
            ]
            await self._runner.run("plan", readers.add, streams)
        if len(self._blocks):
            await self._runner.run("plan", self._by_block, readers)
        return readers.by_epoch

    def _by_block(self, readers: Readers) -> None:
        """Whoever reads a file in blocks reads its blocks: they are dealt out one by one, as a file may be larger than
        what any node keeps."""
        for row in readers.by_epoch:
            of_blocks = row[self._blocks.first :]
            np.copyto(of_blocks, self._blocks.of_files(row, readers.nobody), where=of_blocks == readers.nobody)

    async def _warn_of_room(self, members: Members) -> None:
        """Say so where nodes have no room for what the orders of several jobs rest on."""
        rooms = dict(zip(members.nodes, map(sum, members.capacities_bytes), strict=True))
        said = await self._runner.run("plan", warning, self._kept_at(), np.asarray(self._sizes), rooms)
        if said and said not in self._warned:
            self._warned.add(said)
            log.warning(said)

    def _kept_at(self) -> dict[str, Holders]:
        return {name: one.kept_at for name, one in self._counted.items() if one.kept_at is not None}

    async def share(self, members: Members, holder: Holders | None) -> tuple[Shares, str]:
        """The shares for what was counted, and by what they are made. Args: holder: see `Members.share`."""
        readers = [one.readers for _, one in sorted(self._counted.items())]
        kept_at, sizes = kept_by_all(self._kept_at()), self._blocks.shared_sizes()
        if kept_at is not None and len(self._blocks):
            kept_at = np.append(kept_at[: self._blocks.first], self._blocks.of_files(kept_at, -1))
        shares = await self._runner.run("plan", members.share, sizes, readers, kept_at, holder)
        shares.owner[self._blocks.files_now()] = shares.level[self._blocks.files_now()] = -1  # nobody's but by blocks
        return shares, "by who reads" if readers else "by hash"
