"""numba's help, if it is installed (`pip install mlfs[fast]`): loops of the orders as machine code.

In: nothing. Out: compiled functions, or None as long as there are none: the caller then computes the same without
them. Called by `mlfs.orders.shuffle`. numba is imported and the loop compiled by a thread of its own when the first
long shuffle is asked for, so that no mount starts later for it; the machine code is kept beside this file or in the
user's cache directory, as numba finds room.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

Compiled = Callable[[Any, Any], None]

# Importing numba takes a second of CPU time and some ten megabytes: short shuffles don't pay for that.
_FEWEST_ELEMENTS = 500_000


class _Lazy:
    """The compiled loop, once it is ready. The lock guards the start of the thread only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.ready: Compiled | None = None

    def start(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._compile, name="mlfs-compile", daemon=True)
                self._thread.start()
            return self._thread

    def _compile(self) -> None:
        try:
            self.ready = _compile()
        except Exception:  # a numba that is broken, or too old for this numpy, counts as none
            self.ready = None


_lazy = _Lazy()


def compiled_shuffle(n: int) -> Compiled | None:
    """The loop `swap(values[i], values[targets[i]])`, over (int32 array, uint32 array), if ready and worth it for n."""
    if _lazy.ready is not None or n < _FEWEST_ELEMENTS:
        return _lazy.ready
    if importlib.util.find_spec("numba") is not None:
        _lazy.start()
    return None


def wait_for_compiled() -> bool:
    """Compile now and wait for it; whether there is a compiled loop. For benchmarks and tests."""
    if importlib.util.find_spec("numba") is None:
        return False
    _lazy.start().join()
    return _lazy.ready is not None


def _swap_forward(values: Any, targets: Any) -> None:
    for i in range(len(targets)):
        j = targets[i]
        kept = values[i]
        values[i] = values[j]
        values[j] = kept


def _compile() -> Compiled:
    """Import numba, compile for the types in use, and try it."""
    import numba

    try:
        function: Compiled = numba.njit(nogil=True, cache=True)(_swap_forward)
    except RuntimeError:  # nowhere to keep the machine code
        function = numba.njit(nogil=True)(_swap_forward)
    values = np.arange(3, dtype=np.int32)
    function(values, np.array([1, 2, 2], dtype=np.uint32))
    if values.tolist() != [1, 2, 0]:
        raise RuntimeError("numba compiled something else")
    return function
