"""Part `orders` of scripts/bench: how long a permutation takes, beside torch's own in the same run, on one core.

In: rounds. Out: lines on stdout, medians in milliseconds of CPU time and as a ratio to torch's; SystemExit where the
permutations are not the library's. Needs torch, and measures with numba if that is installed.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.counters import must_be
from mlfs.orders import shuffle
from mlfs.orders.mt19937 import PythonGenerator, randperm

IMAGENET, IMAGENET_22K = 1_281_167, 14_197_122


def permutations(work: Path, data: Path, rounds: int) -> None:
    """Permutations as torch and Python make them, without the library, beside the library."""
    import torch

    torch.set_num_threads(1)
    compiled_shuffle = shuffle.compiled_shuffle
    numba = importlib.util.find_spec("numba") is not None and shuffle.wait_for_compiled()
    for n in (IMAGENET, IMAGENET_22K):
        theirs = _median(lambda n=n: torch.randperm(n, generator=torch.Generator().manual_seed(1)), rounds)
        print(f"  randperm({n:,}): torch {theirs:8.1f} ms", flush=True)
        wanted = torch.randperm(n, generator=torch.Generator().manual_seed(1)).numpy()
        shuffle.compiled_shuffle = lambda n: None  # type: ignore[assignment]
        must_be("torch's permutation, by numpy", np.array_equal(randperm(n, 1), wanted), randperm(n, 1))
        _tell("numpy", _median(lambda n=n: randperm(n, 1), rounds), theirs)
        shuffle.compiled_shuffle = compiled_shuffle
        if numba:
            must_be("numba", compiled_shuffle(n) is not None, "its function is not there")
            must_be("torch's permutation, by numba", np.array_equal(randperm(n, 1), wanted), randperm(n, 1))
            _tell("numba", _median(lambda n=n: randperm(n, 1), rounds), theirs)
    values, numbers = np.arange(IMAGENET, dtype=np.int32), list(range(IMAGENET))
    theirs = _median(lambda: random.Random(1).shuffle(numbers), rounds)
    print(f"  random.shuffle({IMAGENET:,}): Python {theirs:8.1f} ms")
    shuffled, ours = list(range(IMAGENET)), values.copy()
    random.Random(1).shuffle(shuffled)
    PythonGenerator(1).shuffle(ours)
    must_be("Python's shuffle", ours.tolist() == shuffled, ours)
    _tell("here", _median(lambda: PythonGenerator(1).shuffle(values), rounds), theirs)


def _tell(what: str, ours_ms: float, theirs_ms: float) -> None:
    print(f"    {what:8} {ours_ms:8.1f} ms   {ours_ms / theirs_ms:5.2f} of theirs", flush=True)


def _median(call: Callable[[], Any], rounds: int) -> float:
    """Milliseconds of CPU time."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()  # of this process: others may use its core meanwhile
        call()
        taken.append((time.process_time() - start) * 1e3)
    return statistics.median(taken)
