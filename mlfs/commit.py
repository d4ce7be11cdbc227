"""The commit that this mlfs was made from, for `mlfs --version`.

In: the checkout that the package lies in, or the file that the build of a wheel has left in it. Out: a short hash.
setup.py writes that file with the same words; so nothing is imported here that a build does not have.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).parent
FILE = "commit.txt"
# git answers from a local disk within milliseconds; a checkout on a file system that hangs has no commit.
_TIMEOUT_S = 5.0


def commit() -> str | None:
    """The commit, such as `cd8c4ba59a3f`, with `-dirty` behind it where files differ from it; None: nobody knows."""
    found = commit_of_checkout(_PACKAGE.parent)
    if found is None:
        with suppress(OSError):
            found = (_PACKAGE / FILE).read_text(encoding="ascii").strip() or None
    return found


def commit_of_checkout(root: Path) -> str | None:
    """The commit of the checkout at `root`; None where there is none, or git is missing or refuses."""
    if not (root / ".git").exists():  # one further up is somebody else's, as of an environment below a project
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
