"""A rank of a training script that reads the order which mlfs serves: only its sampler's line differs from any other.

In: a directory, how many epochs; the rank from the launcher's environment. Out: for each epoch a line with the names of
the files that were read.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

import mlfs.torch


class Files(Dataset[str]):
    """What an ImageFolder reads, without the images: each file holds its number."""

    def __init__(self, directory: Path) -> None:
        self.paths = sorted(directory.glob("c*/*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        content = self.paths[index].read_bytes()
        assert content == content[:3] * (len(content) // 3), "the bytes of one file"
        return f"f{content[:3].decode()}.jpg"


def main() -> None:
    directory, epochs = Path(sys.argv[1]), int(sys.argv[2])
    dataset = Files(directory)
    sampler = mlfs.torch.ServedSampler(directory, dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        print(*(name for batch in loader for name in batch), flush=True)


main()
gc.freeze()  # or Python, as it ends, looks for garbage among all that torch is made of: half a second
