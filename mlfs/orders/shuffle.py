"""Fisher-Yates shuffles without a loop over the elements: from the list of swaps to the permutation.

In: the partner of every position, as the generators of the samplers drew them. Out: the permutation. Called by
`mlfs.orders.mt19937` (torch) and by the samplers of other frameworks; with numba installed the same loop is
compiled. Source of the rule: Durstenfeld, Algorithm 235, CACM 7 (1964).

Take a shuffle that goes forward: for i in 0 .. n-1, swap r[i] with r[j_i], where j_i >= i. Steps depend on each other,
but hardly ever within a short block of them: a block's partners are spread over all that is left. So blocks are done
one after the other, and the steps of a block at once:

- A position x >= i is touched before step i only as the partner j_k = x of earlier steps k. Step k leaves there what
  stood at position k before step k. Call that value V(k).
- So V(k) = V(m) for the last m < k of the block with j_m = k, and what stood at k when the block began if there is
  none: V is the root of a chain of parents.
- Step i takes to r[i] what stood at j_i: V(k) of the last k < i with j_k = j_i, and r[j_i] if there is none.

Sorting the pairs (j_i, i) puts "the last k before i with the same partner" next to i, and makes the accesses to memory
run upwards; pointer doubling finds the roots, in a few rounds and for the few positions that have a parent.

Other directions are the same shuffle seen from elsewhere. Backward (i from n-1 down, j_i <= i) is forward over the
array read from its end. Growing (i from 0 up, j_i <= i) makes the swaps of backward in the opposite order, which gives
the inverse permutation.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Direction = Literal["forward", "backward", "growing"]
Permutation = npt.NDArray[np.int32]

# Elements that are swapped at once: n / _SPREAD, within bounds. A larger block has less overhead for each element. A
# smaller one fits a core's cache, and has fewer swaps that depend on each other, which cost further passes.
SMALLEST_BLOCK = 1 << 12
LARGEST_BLOCK = 1 << 16
_SPREAD = 100
MOST_ELEMENTS = 2**31 - 1


def shuffle_from_targets(targets: npt.NDArray[Any], direction: Direction = "forward") -> Permutation:
    """Return where each element of a shuffled array comes from: `shuffled = original[result]`, shape (n,).

    Args:
        targets: the partner of each position 0 .. n-1 (not of each step in time), any integer type, shape (n,).
        direction: "forward": i = 0 .. n-1, targets[i] >= i (torch). "backward": i = n-1 .. 0, targets[i] <= i
            (numpy, Python). "growing": i = 0 .. n-1, targets[i] <= i (libstdc++'s std::shuffle, inside-out).

    Raises:
        ValueError: more than 2^31 - 1 elements.
    """
    n = len(targets)
    if n > MOST_ELEMENTS:
        raise ValueError(f"cannot shuffle {n} elements: {MOST_ELEMENTS} are the most")
    if direction == "forward":
        return _forward(targets)
    turned = _forward(np.subtract(max(0, n - 1), targets[::-1], dtype=np.uint32, casting="unsafe"))
    backward = np.subtract(n - 1, turned[::-1], dtype=np.int32)
    if direction == "backward":
        return backward
    growing = np.empty(n, dtype=np.int32)
    growing[backward] = np.arange(n, dtype=np.int32)
    return growing


def _forward(targets: npt.NDArray[Any]) -> Permutation:
    result = np.arange(len(targets), dtype=np.int32)
    compiled = compiled_shuffle(len(targets))
    if compiled is not None:
        compiled(result, np.ascontiguousarray(targets, dtype=np.uint32))
        return result
    size = min(max(len(targets) // _SPREAD, SMALLEST_BLOCK), LARGEST_BLOCK)
    for start in range(0, len(targets), size):
        _block(result, start, targets[start : start + size])
    return result


def _block(result: Permutation, start: int, targets: npt.NDArray[Any]) -> None:
    """Make the steps start .. start + len(targets) - 1 on `result`."""
    steps, at = _by_target(targets)
    stop = start + len(targets)
    here = result[start:stop].copy()
    taken = result[at]
    again = np.flatnonzero(at[1:] == at[:-1])  # pairs `again` and `again + 1` have one target
    within = int(np.searchsorted(at, stop))  # pairs whose target is a position of the block come first
    if within:
        _find_left(here, steps[:within], at[:within] - start)
    if len(again):
        taken[again + 1] = here[steps[again]]
        last = np.ones(len(at), dtype=np.bool_)  # numpy promises no order for assignments to repeated positions
        last[again] = False
        result[at[last]] = here[steps[last]]
    else:
        result[at] = here[steps]
    result[start + steps] = taken  # last: a block's own positions are final after their own step


def _by_target(targets: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the steps of a block (from 0) and their targets, both sorted by (target, step)."""
    pairs = targets.astype(np.uint64)
    pairs <<= np.uint64(32)
    pairs |= np.arange(len(targets), dtype=np.uint64)
    pairs.sort()
    return (pairs & np.uint64(0xFFFFFFFF)).astype(np.intp), (pairs >> np.uint64(32)).astype(np.intp)


def _find_left(here: Permutation, steps: npt.NDArray[np.intp], at: npt.NDArray[np.intp]) -> None:
    """Make of `here`, what stood at each position of the block when it began, what its step leaves behind: V.

    `steps` and `at` are the pairs with targets in the block, both counted from its start. A step that swaps a position
    with itself becomes its own parent, which is not its V; nobody asks for that one, as no later step has that target.
    """
    last = np.append(at[1:] != at[:-1], True)
    climbing = at[last]
    parents = np.arange(len(here), dtype=np.intp)
    parents[climbing] = steps[last]
    children, heights = climbing, parents[climbing]
    while len(children):
        above = parents[heights]
        higher = np.flatnonzero(above != heights)
        children, heights = children[higher], above[higher]
        parents[children] = heights
    here[climbing] = here[parents[climbing]]


class Shuffles:
    """A generator whose permutation is a shuffle of 0 .. n-1, as in most libraries."""

    def shuffle(self, x: Permutation, /) -> None:
        raise NotImplementedError

    def permutation(self, n: int, /) -> Permutation:
        """0 .. n-1, shuffled."""
        values = np.arange(n, dtype=np.int32)
        self.shuffle(values)
        return values

    def sample(self, n: int, count: int, /) -> npt.NDArray[Any]:
        """The beginning of a permutation."""
        return self.permutation(n)[:count]


# -- numba's help, if it is installed (`pip install mlfs[fast]`): the loop as machine code
#
# numba is imported and the loop compiled by a thread of its own when the first long shuffle is asked for, so that no
# mount starts later for it; until then the same is computed without. The machine code is kept beside this file or in
# the user's cache directory, as numba finds room.


Compiled = Callable[[Any, Any], None]

# Importing numba takes a second of CPU time and some ten megabytes: short shuffles don't pay for that.
_FEWEST_ELEMENTS = 500_000


_ready: list[Compiled] = []  # the compiled loop, once there is one


@cache
def _compiling() -> threading.Thread:
    thread = threading.Thread(target=_compile, name="mlfs-compile", daemon=True)
    thread.start()
    return thread


def compiled_shuffle(n: int) -> Compiled | None:
    """The loop `swap(values[i], values[targets[i]])`, over (int32 array, uint32 array), if ready and worth it for n."""
    if not _ready and n >= _FEWEST_ELEMENTS and importlib.util.find_spec("numba") is not None:
        _compiling()
    return _ready[0] if _ready else None


def wait_for_compiled() -> bool:
    """Compile now and wait for it; whether there is a compiled loop. For benchmarks and tests."""
    if importlib.util.find_spec("numba") is None:
        return False
    _compiling().join()
    return bool(_ready)


def _swap_forward(values: Any, targets: Any) -> None:
    for i in range(len(targets)):
        j = targets[i]
        kept = values[i]
        values[i] = values[j]
        values[j] = kept


def compiled(function: Any) -> Any:
    """A function as machine code, which numba keeps, if it finds room, for the next time."""
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep the machine code
        return numba.njit(nogil=True)(function)


def _compile() -> None:
    """Import numba, compile for the types in use, and try it."""
    try:
        function: Compiled = compiled(_swap_forward)
        values = np.arange(3, dtype=np.int32)
        function(values, np.array([1, 2, 2], dtype=np.uint32))
    except Exception:  # a numba that is broken, or too old for this numpy, counts as none
        return
    if values.tolist() == [1, 2, 0]:
        _ready.append(function)
