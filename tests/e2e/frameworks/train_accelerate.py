"""A training script for accelerate, as users write them: knows nothing of mlfs.

    torchrun --standalone --nproc-per-node 2 train_accelerate.py DATA OUT

Each rank writes what it saw to OUT/RANK.json: for each epoch the checksum of every sample, in order.
"""

import gc
import json
import sys
import zlib
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

SEED, EPOCHS, BATCH_SIZE, WORKERS = 2024, 3, 8, 2


class Files(Dataset):
    """Every file below a directory, by class and name."""

    def __init__(self, directory):
        self.paths = sorted(Path(directory).glob("*/*"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        content = self.paths[index].read_bytes()
        return torch.tensor([len(content) / 1e5]), zlib.crc32(content)


def main(directory, out):
    torch.set_num_threads(1)
    set_seed(SEED)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Files(directory), BATCH_SIZE, shuffle=True, num_workers=WORKERS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = []
    for _ in range(EPOCHS):
        seen.append([])
        for sizes, checksums in loader:
            optimizer.zero_grad()
            accelerator.backward(model(sizes).square().mean())
            optimizer.step()
            seen[-1] += checksums.tolist()
    Path(out, f"{accelerator.process_index}.json").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
    gc.freeze()  # or Python, as it ends, looks for garbage among all that torch is made of: half a second
