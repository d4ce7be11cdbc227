"""A plain PyTorch training script, as people write them. It knows nothing of mlfs and is the same with and without it.

    torchrun --nproc-per-node 2 scripts/train_demo.py DATA [--epochs 4]

In: a directory in ImageFolder's layout, of images or of arrays of pixels (.npy); rank and world size from torchrun.
Out: a JSON line an epoch and rank: epoch, rank, seconds, seconds waiting for data, loss, and when the first batch was
there (Unix time); then one line
{"final_loss": ...} with the loss of the last epoch over all ranks as a hexadecimal float, so that two runs can be
compared bit for bit. Deterministic.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

EXTENSIONS = (".npy", ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SIDE = 32


def corner(path: str) -> bytearray:
    """The pixels of an array's corner. All of the array is read."""
    return bytearray(np.load(path)[:SIDE, :SIDE].tobytes())


def scaled_down(path: str) -> bytearray:
    """The pixels of an image, scaled down."""
    with open(path, "rb") as file:
        image = Image.open(file)
        image.draft("RGB", (2 * SIDE, 2 * SIDE))  # the decoder itself scales down: an eighth of the work
        return bytearray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR).tobytes())


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Samples by torchvision's rule: sorted class directories, and a sorted walk in each."""

    def __init__(self, root: str) -> None:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(directory, name), label)
            for label, label_name in enumerate(classes)
            for directory, _, names in sorted(os.walk(os.path.join(root, label_name), followlinks=True))
            for name in sorted(names)
            if name.lower().endswith(EXTENSIONS)
        ]
        self.classes = len(classes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        pixels = (corner if path.endswith(".npy") else scaled_down)(path)
        tensor = torch.frombuffer(pixels, dtype=torch.uint8).reshape(SIDE, SIDE, 3)
        return tensor.permute(2, 0, 1).float().div_(127.5).sub_(1.0), label


def small_cnn(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4, classes),
    )


def one_epoch(
    model: nn.Module, optimiser: torch.optim.Optimizer, loader: DataLoader[Any]
) -> tuple[float, float, Tensor]:
    """Train for one epoch. Returns the seconds waiting for data, when the first batch came, and sum and number of the
    losses."""
    waiting, first_at, total = 0.0, 0.0, torch.zeros(2, dtype=torch.float64)
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waiting += time.perf_counter() - asked
        first_at = first_at or time.time()
        if batch is None:
            return waiting, first_at, total
        images, labels = batch
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        total += torch.tensor([loss.item(), 1.0], dtype=torch.float64)


def report(line: dict[str, Any]) -> None:
    """Print a line in a single write: the ranks share one output, and print() may write the line's end separately."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def train(args: argparse.Namespace) -> None:
    dataset = ImageFolder(args.data)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.workers)
    model = nn.parallel.DistributedDataParallel(small_cnn(dataset.classes))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        started = time.perf_counter()
        waiting, first_at, total = one_epoch(model, optimiser, loader)
        seconds = time.perf_counter() - started
        dist.all_reduce(total)
        mean = float(total[0] / total[1])
        line = {"epoch": epoch, "rank": dist.get_rank(), "seconds": seconds, "waiting": waiting, "loss": mean}
        report(line | {"first_batch_at": first_at})
    if dist.get_rank() == 0:
        report({"final_loss": mean.hex()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small CNN.")
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
