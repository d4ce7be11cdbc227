"""A training script that draws from torch's default generator, as scripts do. Knows nothing of mlfs.

Run as a program: `drawing_script.py DIRECTORY SEED EPOCHS WORKERS WORDS KIND`. It seeds torch, draws WORDS words as a
model's initial weights do, and shuffles DIRECTORY/train with a DataLoader. KIND: validates (as imagenet/main.py of
pytorch/examples does: a validation loader in each epoch), augments (each item is cropped at random, by another number
of random numbers each). Between two batches at the first tenth of each epoch it waits for a line on stdin, and says so
on stdout, so that a test does not hang on how fast anything is. Prints the names that the loop got, a line an epoch.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

WAITS = "waits"


class Files(Dataset[str]):
    """The files of a directory, class by class; an item is a file's name."""

    def __init__(self, top: str, augments: bool) -> None:
        self.augments = augments
        self.paths = [
            os.path.join(top, kind, name)
            for kind in sorted(os.listdir(top))
            for name in sorted(os.listdir(os.path.join(top, kind)))
        ]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        with open(self.paths[index], "rb") as file:
            content = file.read()
        while self.augments and float(torch.rand(())) > 0.4:  # torchvision's RandomResizedCrop tries until one fits
            torch.randint(0, len(content), (2,))
        return os.path.basename(self.paths[index])


def main() -> None:
    """Train."""
    directory, kind = sys.argv[1], sys.argv[6]
    seed, epochs, workers, words = map(int, sys.argv[2:6])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    torch.nn.init.uniform_(torch.empty(words))
    train = DataLoader(Files(f"{directory}/train", kind == "augments"), 8, shuffle=True, num_workers=workers)
    loaders: list[Any] = [train]
    if kind == "validates":
        loaders.append(DataLoader(Files(f"{directory}/val", False), 8, num_workers=workers))
    for _ in range(epochs):
        names: list[str] = []
        for step, batch in enumerate(train):
            names += batch
            if step == len(train) // 10:
                print(WAITS, flush=True)
                sys.stdin.readline()
        print(*names, flush=True)
        for other in loaders[1:]:
            for _ in other:
                pass


if __name__ == "__main__":
    main()
    gc.freeze()  # or Python, as it ends, looks for garbage among all that torch is made of: half a second
