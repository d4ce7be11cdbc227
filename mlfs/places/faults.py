"""The failures of a store on disk: all are counted, the first of a kind is logged, after a full disk writing rests.

In: failures as the tiers meet them. Out: the `errors` counter of the contract, log lines, whether to try writing now.
Called by `on_disk`, `ssd` and `lmdb_writer` from any thread.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

# How long writing rests. Somebody has to free space meanwhile, which takes a person or a job minutes, and a try costs
# one failed write.
PAUSE_S = 30.0
# After a write that failed with one of these the next one will fail as well.
_LASTING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
# A read that fails with one of these says that the process lacks something. The copy on disk may be right and stays.
PROCESS_SHORTAGE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


class Faults:
    """The failures of one tier."""

    def __init__(self, tier_name: str, clock: Callable[[], float]) -> None:
        self._tier_name = tier_name
        self._clock = clock
        self._lock = threading.Lock()
        self._errors = 0
        self._kinds: set[str] = set()
        self._paused_until_s = float("-inf")
        self._refusal = ""

    @property
    def errors(self) -> int:
        """Failures counted so far."""
        return self._errors

    @property
    def paused(self) -> bool:
        """Whether writing rests, after a failure that is likely to repeat."""
        return self._clock() < self._paused_until_s

    @property
    def refusal(self) -> str:
        """The reason why the last write failed, while writing rests or goes on failing; empty when it goes well."""
        return self._refusal

    def went_well(self) -> None:
        """A write was taken."""
        if self._refusal:
            self._refusal = ""

    def count(self, kind: str, detail: str) -> None:
        """Count a failure; log it if it is the first of its kind."""
        with self._lock:
            self._errors += 1
            if kind in self._kinds:
                return
            self._kinds.add(kind)
        _log.warning("%s: %s: %s (further ones are counted, not logged)", self._tier_name, kind, detail)

    def tell(self, detail: str) -> None:
        """Log something that is worth knowing and is not counted as a failure."""
        _log.warning("%s: %s", self._tier_name, detail)

    def write_failed(self, error: OSError) -> None:
        """Count a write that the medium refused, and pause if the next one would fail as well."""
        name = errno.errorcode.get(error.errno or 0, "unknown error")
        self.count(f"cannot write ({name})", f"{error.strerror or error}; samples come from the source instead")
        if error.errno in _LASTING:
            self._paused_until_s = self._clock() + PAUSE_S
            self._refusal = os.strerror(error.errno or errno.EIO)
