"""The language in which a training run is described to mlfs: one flat JSON object, checked field by field.

In: JSON from users. Out: a `JobSpec`, or one line about what is wrong. Used by the command line, the daemon, the
simulator and `mlfs.orders`. `spec` has the fields, `parse` the way in, `presets` the defaults of frameworks.
"""

from mlfs.job.parse import check_values, job_schema, only_fields, parse_job
from mlfs.job.ranks import MAX_LOCAL_RANKS
from mlfs.job.spec import COMMON, MAX_EPOCHS, MAX_WORLD_SIZE, VERSION, JobSpec, describe, group_of

__all__ = [
    "COMMON",
    "MAX_EPOCHS",
    "MAX_LOCAL_RANKS",
    "MAX_WORLD_SIZE",
    "VERSION",
    "JobSpec",
    "check_values",
    "describe",
    "group_of",
    "job_schema",
    "only_fields",
    "parse_job",
]
