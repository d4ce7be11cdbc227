"""HF Trainer: the DataLoader that it makes for training, on one process, and what accelerate deals to several."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "transformers"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Seeds and data seeds; several ranks share the Trainer's sampler and are dealt to as the Trainer's options say."""
    import torch
    from transformers import Trainer, TrainingArguments

    for _ in range(count):
        n, batch = draw.randint(1, 90), draw.randint(1, 8)
        job: dict[str, Any] = {"batch_size": batch, "drop_last": draw.random() < 0.3}
        if draw.random() < 0.7:
            job["seed"] = draw.randrange(2**32)
        if draw.random() < 0.4:
            job["data_seed"] = draw.randrange(2**40)
        with tempfile.TemporaryDirectory() as out:
            options = {field: job[field] for field in ("seed", "data_seed") if field in job}
            arguments = TrainingArguments(
                out,
                per_device_train_batch_size=batch,
                dataloader_drop_last=job["drop_last"],
                use_cpu=True,
                report_to=[],
                **options,
            )
            rows = [{"labels": index} for index in range(n)]
            trainer = Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=rows, data_collator=_indices)
            trainer._signature_columns = ["labels"]
            yield Case({"preset": "hf-trainer", **job}, n, _read(trainer))


def _indices(rows: list[dict[str, int]]) -> dict[str, Any]:
    import torch

    return {"labels": torch.tensor([row["labels"] for row in rows])}


def _read(trainer: Any) -> list[tuple[int, int, list[int]]]:
    loader = trainer.get_train_dataloader()
    reads = []
    for epoch in range(3):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)  # Trainer.train does
        reads.append((epoch, 0, [int(index) for batch in loader for index in batch["labels"]]))
    return reads
