"""Orders that a node has found out from its reads, told to all: they plan by them as by registered jobs.

In: the jobs of this mount, what the servers of other nodes say. Out: jobs to plan with for `mlfs.engine.shared_plan`,
orders offered to whoever explains reads here, words for the other servers. Used by `mlfs.engine.shared_jobs`.

An order is told once it has been borne out by some reads, and taken back by who told it when reads refute it. Each node
follows it by its own reads: which ranks run there shows in what is read, and where the reads differ that node finds out
for itself what they are. A registered job that was corrected is told alike: all plan by what the script does instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from mlfs.engine.mount_jobs import MountJobs
from mlfs.engine.runner import Runner
from mlfs.engine.shared_plan import SharedPlan, Tell
from mlfs.errors import MlfsError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams

log = logging.getLogger("mlfs.peers")

# Reads that came as an order says before it is told: a wrong finding mostly lasts for fewer, and each costs all nodes a
# plan and its withdrawal.
BORNE_OUT_READS = 32
# What differs between nodes, or shows only later, and is nothing to the order.
_NOT_THE_ORDER = ("name", "ranks", "batch_size", "start_epoch", "start_step", "epochs")

Fields = Mapping[str, Any]


class _Order(NamedTuple):
    """An order that all plan by. by: the node that told it; of several the lowest."""

    by: int
    fields: Fields


class SharedOrders:
    """Tells the other nodes of orders that this one has found, and plans by those that they have found.

    Args:
        build: computes a job's streams, in a worker thread.
    """

    def __init__(
        self,
        jobs: MountJobs,
        plan: SharedPlan,
        runner: Runner,
        build: Callable[[JobSpec], JobStreams],
    ) -> None:
        self._jobs = jobs
        self._plan = plan
        self._runner = runner
        self._build = build
        self._orders: dict[str, _Order] = {}

    def end(self) -> None:
        """Go on alone."""
        self._orders.clear()

    def look(self, own: int, tell: Tell) -> None:
        """Now and then: tell what was found out here, and take back what proved wrong."""
        found = {}
        for job in self._jobs.jobs.values():
            # An order that mlfs serves is known to all as the registered job's.
            found_here = (job.inferred or job.registered is not None) and job.spec.serve is None
            if found_here and job.predicting and not job.given_up:
                fields = _fields(job.spec)
                found[_key(fields)] = job, fields
        for key, (job, fields) in found.items():
            if key not in self._orders and job.observed >= BORNE_OUT_READS:
                instead = "" if job.registered is None else job.registered.name
                tell({"order": fields, "instead": instead}, None)
                self._plan_by(key, _Order(own, fields), instead)
        for key in [key for key, order in self._orders.items() if order.by == own and key not in found]:
            tell({"order_over": key}, None)
            self._withdraw(key)

    def hear(self, node: int, value: Mapping[str, Any]) -> None:
        """Take in what the server of another node says."""
        if "order" in value:
            fields = value["order"]
            key = _key(fields)
            known = self._orders.get(key)
            if known is None or node < known.by:
                self._plan_by(key, _Order(node, fields), str(value.get("instead", "")))
            if known is None:
                self._jobs.offer(dict(fields))
        if "order_over" in value:
            key = str(value["order_over"])
            if key in self._orders and self._orders[key].by == node:
                self._withdraw(key)

    def _plan_by(self, key: str, order: _Order, instead: str) -> None:
        """Plan by an order, in place of the registered job of that name if it is what is read instead."""
        before = self._orders.get(key)
        self._orders[key] = order
        if before is None or before.fields != order.fields:
            trio.lowlevel.spawn_system_task(self._prepare, key, order.fields, instead)

    async def _prepare(self, key: str, fields: Fields, instead: str) -> None:
        job = None
        try:
            spec = parse_job({**fields, "name": _name(key)})
            streams = await self._runner.run("orders", self._build, spec)
            job = JobRun(spec, streams, self._jobs.manifest.size, inferred=True)
        except MlfsError as error:
            log.warning("an order that another node found cannot be planned with here: %s", error)
        except Exception:  # a bug: it costs reads of the source, never the mount
            log.exception("an order that another node found cannot be planned with here")
        if instead:
            self._plan.want_no_more(instead)
        if key in self._orders:
            self._plan.want(_name(key), _name(key), job)

    def _withdraw(self, key: str) -> None:
        """Nobody plans by an order any more. Here it goes on being followed if reads have borne it out."""
        del self._orders[key]
        self._plan.want_no_more(_name(key))
        for job in list(self._jobs.jobs.values()):
            if job.inferred and not job.observed and _key(_fields(job.spec)) == key:
                self._jobs.end(job.name)


def _fields(spec: JobSpec) -> Fields:
    """An order as it is told: from its first epoch on, for all ranks."""
    fields: dict[str, Any] = json.loads(spec.to_json())
    shared = {name: value for name, value in fields.items() if name not in ("ranks", "start_epoch", "start_step")}
    return {"name": spec.name, "world_size": spec.world_size, **shared}


def _key(fields: Fields) -> str:
    """A name of an order, which is the same on all nodes."""
    return json.dumps({name: fields[name] for name in sorted(fields) if name not in _NOT_THE_ORDER})


def _name(key: str) -> str:
    """By which the planner knows it: no job that is followed here has this name."""
    return f"found-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
