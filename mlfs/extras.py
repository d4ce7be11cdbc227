"""Libraries that `pip install mlfs` leaves out, as no mount needs them: is one there, and what brings it.

In: a library, what needs it. Out: nothing, or an error that names the extra. Called by the commands that draw or solve,
before they begin, and by `mountd.preflight`.
"""

from __future__ import annotations

from importlib.util import find_spec

from mlfs.errors import MlfsError

# The extra of pyproject.toml with which the laboratory's libraries come.
LABORATORY = "lab"


def require(library: str, what: str) -> None:
    """Raise MlfsError (exit code FAILURE) where the library is missing. It is not imported."""
    if find_spec(library) is None:
        raise MlfsError(f"{what} needs {library}, which is not installed", f"pip install 'mlfs[{LABORATORY}]'")
