"""Trainings that end in the middle of epoch 1, or go on from there, as their libraries do: `resume_script.py` forks one
for each object of a line of standard input, and prints a line with the exit codes of all of that line.

An object has the fields of `Run`. A training stops after `steps` steps of epoch 1, if its state is not there yet; else
it goes on to the end of the last epoch. It writes the samples that it has read, by epoch, to `out`. Libraries
are imported once for all of them, before the first that needs them. The environment that /proc shows is each
training's own: RANK, WORLD_SIZE.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from mlfs.torch import ServedSampler

Read = dict[int, list[int]]


class Run(NamedTuple):
    """One training process. Attributes: root: the mount. state: a path that is there where it is to go on."""

    how: str
    root: str
    state: str
    out: str
    rank: int
    world: int
    seed: int
    steps: int
    epochs: int

    @property
    def own_state(self) -> Path:
        """Where this rank keeps what it has saved."""
        return Path(self.state).with_suffix(f".{self.rank}")

    @property
    def loader(self) -> dict[str, Any]:
        """What its DataLoader is told."""
        return {"batch_size": 24 // self.world, "num_workers": 2}

    def saved(self) -> dict[str, Any]:
        """What this rank has saved, else the first one; nothing in a first run."""
        if not Path(self.state).exists():
            return {}
        own = self.own_state
        state: dict[str, Any] = json.loads((own if own.exists() else own.with_suffix(".0")).read_text())
        return state

    def end(self, read: Read) -> None:
        """End the process, with what was read."""
        Path(self.out).write_text(json.dumps(read))
        os._exit(0)


class Files(Dataset[int]):
    """Gives a file's number, after it has been read."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(Path(root).glob("*/*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        self.paths[index].read_bytes()
        return index


def loaders(run: Run, state: dict[str, Any]) -> Iterator[tuple[int, Any, Any]]:
    """By epoch, the loader to go through, and who has a state to be saved."""
    data, begins, done = Files(run.root), state.get("epoch", 0), state.get("steps", 0)
    sampler: Any = DistributedSampler(data, run.world, run.rank, seed=run.seed)
    loader: Any = None
    if run.how == "accelerate":
        torch.manual_seed(run.seed)
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
        loader = accelerator.prepare(DataLoader(data, shuffle=True, **run.loader))
    elif run.how == "stateful":
        loader = StatefulDataLoader(data, sampler=sampler, **run.loader)
    elif run.how == "elastic":
        sampler = ServedSampler(run.root, data, seed=run.seed)
        if state:
            sampler.load_state_dict(state["saved"])
    for epoch in range(begins, run.epochs):
        if run.how == "accelerate":
            loader.set_epoch(epoch)
            yield epoch, skip_first_batches(loader, done) if epoch == begins and done else loader, None
            continue
        sampler.set_epoch(epoch)
        if run.how == "stateful":
            if epoch == begins and state:
                loader.load_state_dict(state["saved"])
            yield epoch, loader, loader
        else:
            yield epoch, DataLoader(data, sampler=sampler, **run.loader), sampler


def train_by_loop(run: Run) -> None:
    """The loop of a script that has one of its own."""
    state, read = run.saved(), Read()
    for epoch, loader, saves in loaders(run, state):
        seen = read.setdefault(epoch, [])
        for step, batch in enumerate(loader):
            seen += batch.tolist()
            if epoch == 1 and step + 1 == run.steps and not state:
                saved = saves.state_dict() if saves is not None and run.how != "epoch" else {}
                if run.how == "elastic":
                    saved["index"] = run.steps * run.loader["batch_size"]  # what is prefetched was not trained with
                run.own_state.write_text(json.dumps({"epoch": 1, "steps": run.steps, "saved": saved}))
                run.end(read)
    run.end(read)


def train_by_lightning(run: Run) -> None:
    """fit(), and fit(ckpt_path=...)."""
    import lightning

    read, checkpoint = Read(), f"{run.state}.ckpt"
    begins_anew = not Path(run.state).exists()

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def training_step(self, batch: Any, step: int) -> Any:
            read.setdefault(self.current_epoch, []).extend(batch.tolist())
            return self.layer(batch[:, None] / 1e4).square().mean()

        def on_train_batch_end(self, outputs: Any, batch: Any, step: int) -> None:
            if begins_anew and self.current_epoch == 1 and step + 1 == run.steps:
                trainer.save_checkpoint(checkpoint)
                run.end(read)

    lightning.seed_everything(run.seed, workers=True, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=run.epochs, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(
        Model(), DataLoader(Files(run.root), shuffle=True, **run.loader),
        ckpt_path=None if begins_anew else checkpoint, weights_only=False,
    )  # fmt: skip
    run.end(read)


def train_by_trainer(run: Run) -> None:
    """HF Trainer's train(), and train(resume_from_checkpoint=...)."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    read, begins_anew = Read(), not Path(run.state).exists()
    directory = f"{run.state}.hf"

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, index: Any) -> Any:
            read.setdefault(int(trainer.state.epoch or 0), []).extend(index.tolist())
            return {"loss": self.layer(index[:, None] / 1e4).square().mean()}

    class Ends(TrainerCallback):
        def on_save(self, *_: Any, **__: Any) -> None:
            run.end(read)

    a_run = run.steps + len(data := Files(run.root)) // run.loader["batch_size"]
    told = TrainingArguments(
        directory, num_train_epochs=run.epochs, per_device_train_batch_size=run.loader["batch_size"],
        dataloader_num_workers=2, seed=run.seed, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="steps" if begins_anew else "no", save_steps=a_run, logging_strategy="no",
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(
        Model(), told, train_dataset=data, data_collator=lambda rows: {"index": torch.tensor(rows)},
        callbacks=[Ends()] if begins_anew else [],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=None if begins_anew else f"{directory}/checkpoint-{a_run}")
    run.end(read)


def write_for_litdata(run: Run) -> None:
    """Chunks of ten samples, as its optimize writes them."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(run.root, chunk_size=10)
    for index in range(run.steps * 24):
        writer.add_item(index, {"index": index, "image": bytes(5000)})
    writer.done()
    writer.merge(1)
    run.end({})


def train_by_litdata(run: Run) -> None:
    """A loop over a StreamingDataLoader, and with its load_state_dict()."""
    from litdata import StreamingDataLoader, StreamingDataset

    state, read = run.saved(), Read()
    loader = StreamingDataLoader(StreamingDataset(run.root, shuffle=True, seed=run.seed), **run.loader)
    if state:
        loader.load_state_dict(state)
    for epoch in range(state.get("current_epoch", 1) - 1, run.epochs):
        seen = read.setdefault(epoch, [])
        for step, batch in enumerate(loader):
            seen += batch["index"].tolist()
            if epoch == 1 and step + 1 == run.steps // 2 and not state:
                run.own_state.write_text(json.dumps(loader.state_dict()))
                for worker in multiprocessing.active_children():  # litdata's outlive it
                    worker.kill()
                run.end(read)
    run.end(read)


def fork(run: Run) -> int:
    """Fork a process that trains; returns its id."""
    process = os.fork()
    if process:
        return process
    try:
        os.dup2(2, 1)  # what libraries print
        show("RANK", run.rank)
        show("WORLD_SIZE", run.world)
        ways = {"lightning": train_by_lightning, "trainer": train_by_trainer}
        ways |= {"litdata": train_by_litdata, "chunks": write_for_litdata}
        ways.get(run.how, train_by_loop)(run)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def show(name: str, digit: int) -> None:
    """Give a variable of one digit its value, also in what /proc shows."""
    begin, end = (int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    shown = (ctypes.c_char * (end - begin)).from_address(begin)
    at = (b"\0" + bytes(shown)).index(f"\0{name}=".encode()) + len(name) + 1
    shown[at : at + 1] = b"%d" % digit
    os.environ[name] = str(digit)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gc.freeze()
    for line in sys.stdin:
        runs = [Run(**fields) for fields in json.loads(line)]
        if runs[0].how == "lightning":
            import lightning  # noqa: F401 - once for all of them: it takes longer than they do

            gc.freeze()
        if launcher := os.fork():  # a run that goes on has another one
            os.waitpid(launcher, 0)
            continue
        processes = [fork(run) for run in runs]
        print([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes], flush=True)
        os._exit(0)
