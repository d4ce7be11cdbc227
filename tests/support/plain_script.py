"""A training script as people write it: seeds torch, makes a model, shuffles with a DataLoader. Knows nothing of mlfs.

Run as a program: `plain_script.py DIRECTORY SEED EPOCHS WORKERS KIND`. Prints for each epoch the names of the files of
training and of validation, a line each, in the order in which the loop got them.
KIND: default (shuffle=True), shared (shuffle=True and a generator), persistent (the same as default, workers live on).
"""

from __future__ import annotations

import gc
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[str]):
    """The files of a directory, class by class. An item is a file's name; the file is read for it."""

    def __init__(self, top: str) -> None:
        self.paths = [
            os.path.join(top, kind, name)
            for kind in sorted(os.listdir(top))
            for name in sorted(os.listdir(os.path.join(top, kind)))
        ]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        with open(self.paths[index], "rb") as file:
            return os.path.basename(self.paths[index]) if file.read() else ""


def make_model(seed: int) -> None:
    """Seed torch and draw initial weights from its default generator."""
    torch.manual_seed(seed)
    torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(20, 5), torch.nn.Embedding(7, 5))


def words_drawn(seed: int) -> int:
    """How many words the default generator has handed out since it was seeded (also in docs/orders.md)."""
    words, again = 0, torch.Generator().manual_seed(seed)
    while not torch.equal(again.get_state(), torch.get_rng_state()):
        torch.empty(1, dtype=torch.int32).random_(generator=again)
        words += 1
    return words


def main() -> None:
    """Train."""
    directory, kind = sys.argv[1], sys.argv[5]
    seed, epochs, workers = map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    make_model(seed)
    own = torch.Generator().manual_seed(seed) if kind == "shared" else None
    persistent = kind == "persistent"
    train = DataLoader(
        Files(f"{directory}/train"), 8, shuffle=True, num_workers=workers, generator=own, persistent_workers=persistent
    )
    validation = DataLoader(Files(f"{directory}/val"), 8, num_workers=1)
    for _ in range(epochs):
        print(*(name for batch in train for name in batch))
        print(*(name for batch in validation for name in batch))


if __name__ == "__main__":
    main()
    gc.freeze()  # or Python, as it ends, looks for garbage among all that torch is made of: half a second
