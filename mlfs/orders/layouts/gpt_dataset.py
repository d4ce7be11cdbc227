"""The samples of Megatron's GPTDataset: pieces of documents, one after the other in a shuffled order of them.

In: the lengths of all documents, the seed, the length of a sample and how many are wanted; or the three arrays that
Megatron has saved. Out: the documents in their order, where each sample begins in the row of their tokens, and which
sample each index is. Called by `mlfs.orders.layouts.rows`.

The documents of all epochs stand in a row, shuffled together, but for a last epoch of which less than four fifths are
used: that stands behind them. Samples follow each other in the row, so a sample may end in another document than it
begins in. It has one token more than its length, which is the first one of the next sample.

Source: megatron/core/datasets/gpt_dataset.py, helpers.cpp (megatron-core 0.16).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
SAMPLES_AT_ONCE: Final = 1 << 18
# A last epoch of which less is used is shuffled by itself.
_SEPARATE_BELOW: Final = 0.80


class TokenRow(NamedTuple):
    """Documents in a row, and the samples that it is cut into.

    Attributes:
        documents: in their order.
        begins: the token of the row at which each sample begins, and behind them that at which the last one ends.
        sample_of: which of the samples each dataset index is.
    """

    documents: npt.NDArray[Any]
    begins: Column
    sample_of: npt.NDArray[Any]


def first_part(documents: int, split: Sequence[float]) -> int:
    """The number of documents in the first part of a split such as 969,30,1."""
    shares = np.array(split, dtype=np.float64)
    return round(float((shares / shares.sum())[0]) * documents)


def computed(lengths: Column, sequence_length: int, samples: int | None, seed: int) -> TokenRow:
    """The row of these documents for at least so many samples; of one epoch by default.

    Raises: ValueError, there are no tokens for one sample.
    """
    tokens = int(lengths.sum())
    if tokens <= sequence_length:
        raise ValueError(f"its {tokens:,} tokens are no sample of {sequence_length:,} and one more")
    epochs = 1 if samples is None else max(1, -(-(samples * sequence_length + 1) // tokens))
    count = (epochs * tokens - 1) // sequence_length
    before_last = ((epochs - 1) * tokens - 1) // sequence_length
    of_epoch = (tokens - 1) // sequence_length
    is_separate = epochs > 1 and (samples or 0) - before_last < int(_SEPARATE_BELOW * of_epoch)
    draw = np.random.RandomState(seed)

    def shuffled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        draw.shuffle(array)
        return array

    one = np.arange(len(lengths), dtype=np.int32)
    if is_separate:
        documents = np.concatenate([shuffled(np.tile(one, epochs - 1)), shuffled(one)])
        index = np.concatenate([shuffled(np.arange(before_last)), shuffled(np.arange(before_last, count))])
    else:
        documents, index = shuffled(np.tile(one, epochs)), shuffled(np.arange(count))
    return TokenRow(documents, sequence_length * np.arange(count + 1), index)


def saved(arrays: Sequence[npt.NDArray[Any]], lengths: Column) -> TokenRow:
    """The row of Megatron's three arrays: the documents; for each sample a place among them and a token of that one;
    the sample of each index.

    Raises: ValueError, they are not those of these documents.
    """
    documents, samples, index = arrays
    shapes = documents.ndim == 1 and samples.ndim == 2 and samples.shape[1:] == (2,) and index.ndim == 1
    if not shapes or any(array.dtype.kind not in "iu" or not len(array) for array in (documents, samples, index)):
        raise ValueError("its saved indices have other shapes than Megatron's")
    samples = samples.astype(np.int64)
    for numbers, end in ((documents, len(lengths)), (samples[:, 0], len(documents)), (index, len(samples) - 1)):
        if int(numbers.min()) < 0 or int(numbers.max()) >= end:
            raise ValueError("its saved indices are those of other documents")
    begins = np.concatenate([[0], np.cumsum(lengths[documents])])[samples[:, 0]] + samples[:, 1]
    if (np.diff(begins) <= 0).any():
        raise ValueError("its saved indices are those of other documents")
    return TokenRow(documents, begins, index.astype(np.int64))


def pieces(
    row: TokenRow, lengths: Column, offsets: Column, token_bytes: int
) -> Iterator[tuple[Column, Column, Column]]:
    """The pieces of the samples, in their order in the row: the sample, the place in the file and the bytes of each.

    Args:
        lengths: tokens by document. offsets: where each begins in the file.
    """
    edges = np.concatenate([[0], np.cumsum(lengths[row.documents])])
    for first in range(0, len(row.begins) - 1, SAMPLES_AT_ONCE):
        begins = row.begins[first : first + SAMPLES_AT_ONCE + 1]
        begins, ends = begins[:-1], np.minimum(begins[1:] + 1, edges[-1])
        documents = np.searchsorted(edges, begins, side="right") - 1
        counts = np.searchsorted(edges, ends - 1, side="right") - documents
        sample = np.repeat(np.arange(len(begins)), counts)
        at = documents[sample] + np.arange(len(sample)) - np.repeat(np.cumsum(counts) - counts, counts)
        low, high = np.maximum(begins[sample], edges[at]), np.minimum(ends[sample], edges[at + 1])
        place = offsets[row.documents[at]] + (low - edges[at]) * token_bytes
        yield first + sample, place, (high - low) * token_bytes
