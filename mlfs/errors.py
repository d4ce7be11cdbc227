"""Errors that a user sees: one line that says what is wrong, and one hint that says how to mend it.

Raised anywhere in mlfs, printed by `mlfs.cli`, which exits with the error's `exit_code`.
The exit codes are documented in docs/exit-codes.md and are part of the interface.
"""

from __future__ import annotations

from enum import IntEnum
from importlib.util import find_spec


class ExitCode(IntEnum):
    """Exit codes of the command `mlfs`."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    SOURCE = 3
    MOUNT_POINT = 4
    NO_FUSE = 5
    NOT_PERMITTED = 6
    BUSY = 7
    NOT_MOUNTED = 8
    BAD_JOB = 9
    CACHE = 10
    AUDIT = 11
    STRICT_ORDER = 12
    INTERRUPTED = 130


class MlfsError(Exception):
    """An error with a remedy.

    Args:
        message: what is wrong, one line, no trailing period.
        hint: what the user can do about it, one line; may be empty.
        exit_code: what the command exits with.
    """

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(self, message: str, hint: str = "", exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(MlfsError):
    """A flag or a line of the TOML file that cannot be used."""

    exit_code = ExitCode.USAGE


class SourceError(MlfsError):
    """The source directory is missing, not a directory, empty or not readable."""

    exit_code = ExitCode.SOURCE


class JobError(MlfsError):
    """A job specification that cannot be used; `field` names the offending field."""

    exit_code = ExitCode.BAD_JOB

    def __init__(self, message: str, hint: str = "", field: str = "") -> None:
        super().__init__(message, hint)
        self.field = field


class CacheError(MlfsError):
    """A cache directory that cannot be used."""

    exit_code = ExitCode.CACHE


# -- libraries that `pip install mlfs` leaves out, as no mount needs them

# The extra of pyproject.toml with which the laboratory's libraries come.
LABORATORY = "lab"


def require(library: str, what: str) -> None:
    """Raise MlfsError (exit code FAILURE) where the library is missing. It is not imported."""
    if find_spec(library) is None:
        raise MlfsError(f"{what} needs {library}, which is not installed", f"pip install 'mlfs[{LABORATORY}]'")
