"""What is said of a job whose script does something else than was registered, and how to register it so.

In: numbers and changed fields. Out: sentences for `status` and the log, flags of `mlfs register`. Used by
`mlfs.follow.findings`, which notices that a job began with another epoch, and by `mlfs.explain`, which searches for all
other differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTS_FROM_ONE = "this job counts its epochs from 1: each reads the order of the next one"
UNDER_WAY = "this job was under way, in epoch {epoch}, when it was registered"
RESUMED = "this job was resumed elsewhere: it began with epoch {epoch}, not {start}"


def flags_of(changes: Mapping[str, Any]) -> str:
    """The flags of `mlfs register` that give a job these fields from the start."""
    said = []
    for name, value in changes.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            said.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            said.append(f"--{flag}={words}" if words.startswith("-") else f"--{flag} {words}")
    return " ".join(said)
