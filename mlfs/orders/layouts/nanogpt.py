"""The windows that nanoGPT's get_batch draws, in the order in which a process reads them.

In: the tokens of train.bin and val.bin, a job's fields. Out: for each window its file and its first token. Called by
`mlfs.orders.layouts.rows`.

Each process draws positions by torch.randint from the seed and its rank, once its model has taken `words_before`. It
reads a batch, then in each step `batches_a_step` more. Before every `eval_interval`-th step, from the first one on, the
process of rank 0 draws `eval_batches` of training and as many of validation.

Source: nanoGPT, train.py (get_batch, estimate_loss; commit 3adf61e).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from mlfs.orders.generators import Torch

if TYPE_CHECKING:
    from mlfs.job import JobSpec

Column = npt.NDArray[np.int64]
TRAIN: Final = 0
VALIDATION: Final = 1
TOKEN_BYTES: Final = 2


def reads_of(spec: JobSpec, rank: int) -> list[tuple[int, int]]:
    """The draws of a process in their order: of which file, `TRAIN` or `VALIDATION`, and how many windows."""
    batch = spec.batch_size
    interval = (spec.eval_interval or 0) if rank == 0 else 0
    evaluated = batch * (spec.eval_batches or 0)
    a_step, left = batch * (spec.batches_a_step or 1), (spec.num_samples or 0) - batch
    reads = [(TRAIN, batch)]
    while left > 0:
        steps = min(interval, -(-left // a_step)) if interval else -(-left // a_step)
        reads += [(TRAIN, evaluated), (VALIDATION, evaluated)] * bool(interval)
        reads.append((TRAIN, min(left, steps * a_step)))
        left -= steps * a_step
    return reads


def windows(spec: JobSpec, rank: int, tokens: Sequence[int]) -> tuple[Column, Column]:
    """The file of each window, `TRAIN` or `VALIDATION`, and its first token. Args: tokens: of each of the two files."""
    drawn, reads = Torch(spec.seed + rank), reads_of(spec, rank)
    drawn.skip(spec.words_before or 0)
    files = np.repeat([file for file, _ in reads], [count for _, count in reads])
    below = [count - (spec.sequence_length or 0) for count in tokens]
    positions = [drawn.choices(below[file], count) for file, count in reads]
    return files.astype(np.int64), np.concatenate(positions)
