#!/usr/bin/env python3
"""Asks megatron-core for the indices of its GPTDataset: tests/orders/recorded_gpt_dataset.json.

Out: a case a line: documents, Megatron's arguments, and the document, sample and shuffle index that it makes of them,
compared with mlfs in every test run. It needs megatron-core with its compiled helpers, and torch.

    scripts/record_gpt_dataset.py                  record again what is in the repository
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import recording

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "orders"
NAME = "recorded_gpt_dataset"
CASES = 25


def cases(draw: random.Random, count: int, directory: Path) -> Iterator[dict[str, Any]]:
    """The training part of one data set each, with the documents that BlendedMegatronDatasetBuilder gives it."""
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split

    for number in range(count):
        lengths = [draw.choice([draw.randint(1, 60), draw.randint(1, 4)]) for _ in range(draw.randint(4, 25))]
        prefix = str(directory / f"{number}")
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for length in lengths:
            builder.add_item(torch.zeros(length, dtype=torch.int64))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
        split = draw.choice(([1], [969, 30, 1], [9, 1, 0], [0.5, 0.25, 0.25]))
        sequence, seed = draw.choice((1, 3, 16)), draw.choice((1234, 0, 42))
        of_part = sum(lengths[: round(split[0] / sum(split) * len(lengths))])
        if of_part <= sequence:
            continue
        samples = draw.choice((1, draw.randint(1, 4 * of_part // sequence + 1)))
        config = GPTDatasetConfig(
            random_seed=seed, sequence_length=sequence, blend=([prefix], None), split=",".join(map(str, split)),
            reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
            tokenizer=SimpleNamespace(eod=0, pad=0, vocab_size=9, unique_identifiers={}),
        )  # fmt: skip
        begin, end = (round(share * len(lengths)) for share in config.split_matrix[0])
        documents = np.arange(begin, end, dtype=np.int32)
        made = GPTDataset(IndexedDataset(prefix), prefix, documents, samples, Split.train, config)
        indices = {"document": made.document_index, "sample": made.sample_index, "shuffle": made.shuffle_index}
        job = {"lengths": lengths, "split": split, "sequence_length": sequence, "samples": samples, "seed": seed}
        yield job | {name: index.tolist() for name, index in indices.items()}


def record(name: str, seed: int, count: int, out: Path) -> Path:
    """Write the file."""
    with tempfile.TemporaryDirectory() as directory:
        found = list(cases(random.Random(f"{name} {seed}"), count, Path(directory)))
    return recording.write(out / f"{name}.json", "megatron-core", version("megatron-core"), found)


if __name__ == "__main__":
    sys.exit(recording.run(__doc__, [NAME], CASES, RECORDED, record))
