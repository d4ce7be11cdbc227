"""A training that ends in the middle of epoch 1, or goes on from there, as its library does: `resume_script.py HOW ROOT
STATE STEPS EPOCHS` with RANK, WORLD_SIZE and SEED in the environment. It stops after STEPS steps of epoch 1, if STATE
is not there yet; else it goes on to the end of the last epoch. It prints the samples that it has read, by epoch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from mlfs.torch import ServedSampler

how, root, state_file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
steps, epochs = int(sys.argv[4]), int(sys.argv[5])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LOADER: dict[str, Any] = {"batch_size": 24 // WORLD, "num_workers": 2}
SEED = int(os.environ["SEED"])


class Files(Dataset[int]):
    """Gives a file's number, after it has been read."""

    def __init__(self) -> None:
        self.paths = sorted(root.glob("*/*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        self.paths[index].read_bytes()
        return index


def loaders(state: dict[str, Any]) -> Iterator[tuple[int, Any, Any]]:
    """By epoch, the loader to go through, and who has a state to be saved."""
    data, begins, done = Files(), state.get("epoch", 0), state.get("steps", 0)
    sampler: Any = DistributedSampler(data, WORLD, RANK, seed=SEED)
    loader: Any = None
    if how == "accelerate":
        from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

        torch.manual_seed(SEED)
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
        loader = accelerator.prepare(DataLoader(data, shuffle=True, **LOADER))
    elif how == "stateful":
        loader = StatefulDataLoader(data, sampler=sampler, **LOADER)
    elif how == "elastic":
        sampler = ServedSampler(root, data, seed=SEED)
        if state:
            sampler.load_state_dict(state["saved"])
    for epoch in range(begins, epochs):
        if how == "accelerate":
            loader.set_epoch(epoch)
            yield epoch, skip_first_batches(loader, done) if epoch == begins and done else loader, None
            continue
        sampler.set_epoch(epoch)
        if how == "stateful":
            if epoch == begins and state:
                loader.load_state_dict(state["saved"])
            yield epoch, loader, loader
        else:
            yield epoch, DataLoader(data, sampler=sampler, **LOADER), sampler


def main() -> None:
    """Train until the end, or until it ends."""
    own = state_file.with_suffix(f".{RANK}")
    state = json.loads(state_file.with_suffix(".0").read_text()) if state_file.exists() else {}
    state = json.loads(own.read_text()) if state_file.exists() and own.exists() else state
    read: dict[int, list[int]] = {}
    for epoch, loader, saves in loaders(state):
        seen = read.setdefault(epoch, [])
        for step, batch in enumerate(loader):
            seen += batch.tolist()
            if epoch == 1 and step + 1 == steps and not state:
                saved = saves.state_dict() if saves is not None and how != "epoch" else {}
                if how == "elastic":
                    saved["index"] = steps * LOADER["batch_size"]  # what is prefetched was not trained with
                own.write_text(json.dumps({"epoch": 1, "steps": steps, "saved": saved}))
                print(json.dumps(read), flush=True)
                os._exit(0)
    print(json.dumps(read), flush=True)


if __name__ == "__main__":
    main()
