"""A training script for Lightning, as users write them: knows nothing of mlfs.

    train_lightning.py DATA OUT

Lightning starts the second rank itself. Each rank writes what it saw to OUT/RANK.json: for each epoch the checksum of
every sample, in order.
"""

import gc
import json
import sys
import zlib
from pathlib import Path

import lightning
import torch
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


class Model(lightning.LightningModule):
    """One weight, and a note of what it was trained on."""

    def __init__(self, out):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.out = out
        self.seen = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_epoch_start(self):
        self.seen.append([])

    def training_step(self, batch, _):
        sizes, checksums = batch
        self.seen[-1] += checksums.tolist()
        return self.layer(sizes).square().mean()

    def on_train_end(self):
        Path(self.out, f"{self.global_rank}.json").write_text(json.dumps(self.seen))


def main(directory, out):
    torch.set_num_threads(1)
    lightning.seed_everything(SEED, workers=True)
    loader = DataLoader(Files(directory), BATCH_SIZE, shuffle=True, num_workers=WORKERS)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(out), loader)


if __name__ == "__main__":
    main(*sys.argv[1:])
    gc.freeze()  # or Python, as it ends, looks for garbage among all that torch is made of: half a second
