"""A command of the scheduler as text that is the same in every run, for whoever compares what two runs decided.

In: a command. Out: a line. Called by `support.failures.run`, whose outcome has all of a case's commands in it.
"""

from __future__ import annotations

from mlfs.follow.job import JobRun
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e


def plain(command: c.Command) -> str:
    """A command in text that is the same in every run: jobs by their names, who waits by what for, times to the
    microsecond."""
    return f"{type(command).__name__} {' '.join(map(_plain, command))}"


def _plain(value: object) -> str:
    if isinstance(value, JobRun):
        return value.name
    if isinstance(value, e.Waiter):
        return f"{value.sample}{' of a node' * value.is_peer}"
    return repr(round(value, 6) if isinstance(value, float) else value)
