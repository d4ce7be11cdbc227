"""Megatron's IndexedDataset and GPTDataset, as plainly as they can be said: what tests compare mlfs with.

Source: megatron/core/datasets/indexed_dataset.py, gpt_dataset.py, helpers.cpp (megatron-core 0.16).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def write_indexed(prefix: Path, lengths: np.ndarray, dtype: type = np.uint16) -> np.ndarray:
    """Write PREFIX.bin and PREFIX.idx. Returns the tokens."""
    tokens = np.random.default_rng(1).integers(0, 1 << 15, int(lengths.sum())).astype(dtype)
    prefix.with_suffix(".bin").write_bytes(tokens.tobytes())
    size = np.dtype(dtype).itemsize
    begins = size * np.concatenate([[0], np.cumsum(lengths)[:-1]])
    code = {2: 8, 4: 4}[size]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1).tobytes()
    index = head + lengths.astype("<i4").tobytes() + begins.astype("<i8").tobytes() + documents
    prefix.with_suffix(".idx").write_bytes(index)
    return tokens


def gpt_indices(
    lengths: np.ndarray, documents: int, sequence: int, samples: int | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The document, the sample and the shuffle index of the first documents."""
    draw, tokens, epochs = np.random.RandomState(seed), int(lengths[:documents].sum()), 1
    while samples is not None and epochs * tokens < samples * sequence + 1:
        epochs += 1
    but_last, separate = ((epochs - 1) * tokens - 1) // sequence, False
    if epochs > 1:
        separate = (samples or 0) - but_last < int(0.8 * ((tokens - 1) // sequence))
    order: list[np.ndarray] = []
    for repeats in (epochs - 1, 1) if separate else (epochs,):
        order.append(np.array(list(range(documents)) * repeats, np.int32))
        draw.shuffle(order[-1])
    document_index = np.concatenate(order)
    count, document, offset = (epochs * tokens - 1) // sequence, 0, 0
    sample_index = [(0, 0)]
    while len(sample_index) <= count:
        left = sequence + 1
        while left:
            here = int(lengths[document_index[document]]) - offset
            if here >= left:
                offset += left - 1
                left = 0
            else:
                left -= here
                document, offset = document + 1, 0
        sample_index.append((document, offset))
    shuffles: list[np.ndarray] = []
    for begin, end in ((0, but_last), (but_last, count)) if separate else ((0, count),):
        shuffles.append(np.arange(begin, end, dtype=np.uint32))
        draw.shuffle(shuffles[-1])
    return document_index, np.array(sample_index, np.int32), np.concatenate(shuffles)


def gpt_sample(
    tokens: np.ndarray, lengths: np.ndarray, indices: tuple[np.ndarray, np.ndarray, np.ndarray], at: int
) -> np.ndarray:
    """The tokens of a sample."""
    document_index, sample_index, shuffle_index = indices
    begins = np.concatenate([[0], np.cumsum(lengths)])
    (first, offset), (last, end) = sample_index[shuffle_index[at] :][:2].tolist()
    parts = []
    for number in range(first, last + 1):
        document = int(document_index[number])
        low = offset if number == first else 0
        high = end + 1 if number == last else int(lengths[document])
        parts.append(tokens[begins[document] + low : begins[document] + high])
    return np.concatenate(parts)
