"""What a served order does to learning: a small CNN's accuracy under the true order, locality and opportunistic orders.

    scripts/served-learning [--seeds 10] [--data digits,pictures]

In: scikit-learn's digits (1,797 real images), and the JPEG set of the demo (2,000 pictures of 20 classes). Out: for
each order the mean and the spread of the accuracy on what was not trained with, over several seeds, and the level of
randomness that the order reached. Four ranks are trained as DistributedDataParallel does it: each has a batch of its
own and normalizes it by itself, and the step goes by the mean of their gradients. The tree is sorted by class, as
ImageFolder's is, the nodes keep little of it, and a round has four pieces of it: an opportunistic order can hardly
have it worse.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from make_dataset import Wanted, make_dataset
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from train_demo import SIDE, ImageFolder

from mlfs.job import parse_job
from mlfs.orders.order import Order
from mlfs.orders.registry import build_order
from mlfs.orders.served import ServedOrder
from mlfs.served.rounds import PIECE_BYTES

RANKS, BATCH_SIZE = 4, 16
# So large that a piece of the tree that is read at once (mlfs.served.rounds) has seven samples, mostly of one class.
SAMPLE_BYTES = PIECE_BYTES // 7
# All nodes keep a sixteenth of the data set, and each has a buffer for one piece: with much memory, or pieces that are
# small beside a round, no order has a level as low as 0.5.
KEPT_BY_A_NODE, BUFFER_BYTES = 64, PIECE_BYTES
TESTED_WITH = 5  # each fifth image is not trained with
LEVELS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
ORDERS: dict[str, dict[str, object]] = {
    "true order": {},
    "locality": {"serve": "locality"},
    **{f"opportunistic {level:g}": {"serve": "opportunistic", "level": level} for level in LEVELS},
}
console = Console()


def digits() -> tuple[Tensor, Tensor]:
    """Images of 8 x 8 grey values, and what they show."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 8 - 1, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def pictures() -> tuple[Tensor, Tensor]:
    """The demo's images, scaled down as its training scales them."""
    with tempfile.TemporaryDirectory(prefix="mlfs-learning-") as directory:
        images = Path(directory) / "images"
        make_dataset(images, Wanted(files=2000, classes=20, kilobytes=40, seed=0), console)
        found = [ImageFolder(str(images))[index] for index in track(range(2000), "reading pictures", console=console)]
    # Noise that makes the classes hard to tell: without it any order leads to 100 %.
    noise = torch.randn(len(found), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return torch.stack([image for image, _ in found]) + 2 * noise, torch.tensor([label for _, label in found])


DATA: dict[str, tuple[Callable[[], tuple[Tensor, Tensor]], int]] = {"digits": (digits, 8), "pictures": (pictures, 4)}


def small_cnn(channels: int, classes: int) -> nn.Module:
    """Normalizes batches, which is what feels who reads a sample."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(128, classes),
    )  # fmt: skip


def order_of(samples: int, seed: int, epochs: int, served: dict[str, object]) -> Order:
    """The order of a job on four nodes with a rank each."""
    total = samples * SAMPLE_BYTES
    nodes = [
        {
            "node": rank, "ranks": str(rank), "keeps_bytes": [total // KEPT_BY_A_NODE], "buffer_bytes": BUFFER_BYTES,
        }
        for rank in range(RANKS)
    ]  # fmt: skip
    fields = {"seed": seed, "epochs": epochs, "batch_size": BATCH_SIZE, "world_size": RANKS}
    spec = parse_job(fields | served | ({"nodes": nodes} if served else {}))
    true = build_order(spec, samples)
    if not served:
        return true
    return ServedOrder(true, spec, np.full(samples, SAMPLE_BYTES, dtype=np.int64), np.arange(samples))


def steps(order: Order, epoch: int) -> Iterator[list[Tensor]]:
    """The ranks' batches, step by step."""
    streams = [torch.from_numpy(order.rank_stream(epoch, rank).copy()).split(BATCH_SIZE) for rank in range(RANKS)]
    for batches in zip(*streams, strict=True):
        yield list(batches)


def accuracy(images: Tensor, labels: Tensor, seed: int, epochs: int, served: dict[str, object]) -> tuple[float, float]:
    """Train. Returns the accuracy at the end, and the level of randomness of the order."""
    torch.manual_seed(seed)
    tested = torch.arange(len(images)) % TESTED_WITH == seed % TESTED_WITH
    by_class = torch.argsort(labels[~tested], stable=True)
    trained, told = images[~tested][by_class], labels[~tested][by_class]
    model = small_cnn(images.shape[1], int(labels.max()) + 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = order_of(len(trained), seed, epochs, served)
    for epoch in range(epochs):
        model.train()
        for batches in steps(order, epoch):
            optimiser.zero_grad()
            for batch in batches:
                loss = nn.functional.cross_entropy(model(trained[batch]), told[batch])
                (loss / RANKS).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    model.eval()
    with torch.no_grad():
        right = model(images[tested]).argmax(1) == labels[tested]
    level = order.told.get("level_reached", 1.0) if isinstance(order, ServedOrder) else 1.0
    return float(right.float().mean()), level


def main() -> int:
    parser = argparse.ArgumentParser(description="Train under the true order and under served orders.")
    parser.add_argument("--seeds", type=int, default=10, help="trainings of each (default: 10)")
    parser.add_argument("--data", default=",".join(DATA), help=f"of {', '.join(DATA)} (default: both)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.data.split(","):
        make, epochs = DATA[name]
        images, labels = make()
        table = Table(title=f"\n{name}: {epochs} epochs, {args.seeds} seeds; accuracy on each fifth image")
        for column in ("order", "level reached", "mean", "spread", "least", "most"):
            table.add_column(column, justify="left" if column == "order" else "right")
        for order, served in track(ORDERS.items(), f"training on {name}", console=console):
            runs = [accuracy(images, labels, seed, epochs, served) for seed in range(args.seeds)]
            found = [right for right, _ in runs]
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            cells = (statistics.mean(found), spread, min(found), max(found))
            table.add_row(order, f"{runs[0][1]:.2f}", *(f"{cell:.2%}" for cell in cells))
        console.print(table)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
