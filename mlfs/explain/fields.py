"""What all inferred jobs have in common: their name, and how many epochs are assumed.

In: nothing. Out: constants. Used by those parts of `mlfs.explain` that make fields of jobs that nobody registered.
"""

from __future__ import annotations

Fields = dict[str, object]
"""Fields of a job, as in a registration."""

JOB_NAME = "inferred"
# Nobody told how many epochs there will be: more than anybody waits for.
EPOCHS = 1000
