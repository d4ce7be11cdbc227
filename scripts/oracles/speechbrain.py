"""SpeechBrain: the loader that Brain.fit makes for `train_loader_kwargs={"shuffle": True}`; its epochs count from 1."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from types import ModuleType

from oracles.case import Case

DISTRIBUTION = "speechbrain"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """On one process; the seed of seed_everything, or the one that is built in."""
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):  # there is none for each torch, and it only reads sound
        sys.modules["torchaudio"] = ModuleType("torchaudio")
    import speechbrain
    import torch
    from speechbrain.dataio.dataset import DynamicItemDataset
    from speechbrain.utils.seed import seed_everything

    class Brain(speechbrain.Brain):  # type: ignore[misc]
        """Notes what it is trained on."""

        read: list[list[int]]

        def on_stage_start(self, stage: object, epoch: int | None = None) -> None:
            self.read.append([])

        def fit_batch(self, batch: list[dict[str, int]]) -> torch.Tensor:
            self.read[-1].extend(row["index"] for row in batch)
            return torch.zeros(())

        def on_stage_end(self, stage: object, stage_loss: object, epoch: int | None = None) -> None:
            pass

    for _ in range(count):
        n, seed = draw.randint(1, 100), draw.choice((None, 42, draw.randrange(1 << 31)))
        rows = {str(index): {"index": index} for index in range(n)}
        data = DynamicItemDataset(rows, output_keys=["index"])
        brain = Brain(run_opts={"device": "cpu", "noprogressbar": True})
        brain.read = []
        options = {"batch_size": draw.randint(1, 9), "shuffle": True, "collate_fn": list}
        os.environ.pop("SB_GLOBAL_SEED", None)
        if seed is not None:
            seed_everything(seed, verbose=False)
        loader = brain.make_dataloader(data, speechbrain.Stage.TRAIN, **options)
        brain.fit(range(1, EPOCHS + 1), loader)
        job = {"sampler": "composed", "seeding": "seed+epoch+1", "seed": 563375142 if seed is None else seed}
        yield Case(job, n, [(epoch, 0, read) for epoch, read in enumerate(brain.read)])
