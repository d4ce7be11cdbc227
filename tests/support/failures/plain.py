"""A command of the scheduler as text that is the same in every run, for whoever compares what two runs decided.

In: a command. Out: a line. Called by `support.failures.run`, whose outcome has all of a case's commands in it.
"""

from __future__ import annotations

from mlfs.follow.job import JobRun
from mlfs.plan.scheduler import commands as c


def plain(command: c.Command) -> str:
    """A command in text that is the same in every run: jobs by their names, times to the microsecond."""
    fields = [
        value.name if isinstance(value, JobRun) else repr(round(value, 6) if isinstance(value, float) else value)
        for value in command
    ]
    return f"{type(command).__name__} {' '.join(fields)}"
