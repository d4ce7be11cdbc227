"""Lightning: the DistributedSampler that its Trainer makes for several devices, and whole runs on one device."""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from oracles.case import Case

DISTRIBUTION = "lightning"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Every fourth on one device, where Lightning leaves the DataLoader alone."""
    import lightning  # noqa: F401  (its absence should be noticed before the first case)

    for number in range(count):
        yield _one_device(draw) if number % 4 == 3 else _several_devices(draw)


def _several_devices(draw: random.Random) -> Case:
    """With and without seed_everything, which leaves the seed in PL_GLOBAL_SEED."""
    from lightning.fabric.utilities.data import _set_sampler_epoch
    from lightning.pytorch.trainer.connectors.data_connector import _get_distributed_sampler
    from torch.utils.data import DataLoader

    n, world, shuffle = draw.randint(1, 120), draw.randint(2, 6), draw.random() < 0.8
    job: dict[str, Any] = {"preset": "lightning", "world_size": world, "shuffle": shuffle}
    os.environ.pop("PL_GLOBAL_SEED", None)
    if draw.random() < 0.7:
        job["seed"] = draw.randrange(2**32)
        os.environ["PL_GLOBAL_SEED"] = str(job["seed"])
    loader = DataLoader(range(n), shuffle=shuffle)
    reads = []
    for rank in range(world):
        sampler = _get_distributed_sampler(loader, shuffle, overfit_batches=0, num_replicas=world, rank=rank)
        for epoch in range(EPOCHS):
            _set_sampler_epoch(SimpleNamespace(sampler=sampler), epoch)
            reads.append((epoch, rank, [int(index) for index in sampler]))
    return Case(job, n, reads)


def _one_device(draw: random.Random) -> Case:
    """The model draws a word a weight when it is made, a validation loader two words an epoch."""
    import lightning
    import torch
    from torch.utils.data import DataLoader

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    n, inputs, validates, seed = draw.randint(1, 80), draw.randint(1, 40), draw.random() < 0.5, draw.randrange(2**32)
    lightning.seed_everything(seed)
    seen: list[list[int]] = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        """Notes what it is trained on."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(inputs, 1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_epoch_start(self) -> None:
            seen.append([])

        def training_step(self, batch: Any, _: int) -> Any:
            seen[-1].extend(batch.tolist())
            return self.layer(torch.ones(1, inputs)).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            pass

    model, loader = Model(), DataLoader(range(n), draw.randint(1, 9), shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, enable_model_summary=False, **quiet)
    trainer.fit(model, loader, *([DataLoader(range(10), batch_size=4)] if validates else []))
    job = {"sampler": "torch-random", "seed": seed, "words_before": inputs + 1, "words_between": 2 * validates}
    return Case(job, n, [(epoch, 0, read) for epoch, read in enumerate(seen)])
