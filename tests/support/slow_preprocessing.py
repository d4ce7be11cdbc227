"""A script whose preprocessing is slow: each sample sleeps. Told on stdin how many workers to load with.

Arguments: the directory. In: lines with a number of workers. Out: a line with the seconds of each of two epochs.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, SLEEP_S = 8, 0.012


class Slow(Dataset[bytes]):
    """The files of a directory; each takes a while."""

    def __init__(self, directory: str) -> None:
        self.paths = sorted(Path(directory).glob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        data = self.paths[index].read_bytes()
        time.sleep(SLEEP_S)
        return data


def main() -> None:
    """Load."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        loader = DataLoader(
            Slow(sys.argv[1]),
            BATCH,
            num_workers=int(line),
            persistent_workers=True,
            collate_fn=len,
        )
        seconds = []
        for _ in range(2):
            began_s = time.monotonic()
            for _ in loader:
                pass
            seconds.append(time.monotonic() - began_s)
        print(*seconds, flush=True)


if __name__ == "__main__":
    main()
    gc.freeze()  # or Python, as it ends, looks for garbage among all that torch is made of: half a second
