"""Runs a training script as it stands, in the place of `python SCRIPT ...`: for scripts/wild.

    python wild_start.py SCRIPT ARGUMENTS...

In: environment variables, so that the command line is the script's own. WILD_WORDS: a file to which each iteration
over a torch DataLoader, and each Accelerator.prepare, is written as a line of JSON, with the words that torch's default
generator has handed out by then; counting draws nothing. WILD_SEED: seeds torch before the script, for scripts that
have no flag for it. WILD_CPU: scripts that know GPUs alone run on the CPU. Out: what the script does.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

WORDS_A_TURN = 624  # of MT19937: its state changes as a whole after so many words


def words_drawn() -> int:
    """How many words the default generator has handed out since it was seeded."""
    now = torch.get_rng_state().numpy().view(np.uint64)
    again = torch.Generator().manual_seed(torch.initial_seed())
    turns = 0
    while not np.array_equal(again.get_state().numpy().view(np.uint64)[3:627], now[3:627]):
        torch.empty(WORDS_A_TURN, dtype=torch.int32).random_(generator=again)
        turns += 1
    return max(0, turns - 1) * WORDS_A_TURN + int(now[2])


def note_iterations(path: str) -> None:
    """Have each iteration over a DataLoader written down."""
    loader: Any = torch.utils.data.DataLoader
    iterate = loader.__iter__

    def noted(self: Any) -> Iterator[Any]:
        batches: Any = self.batch_sampler
        while hasattr(batches, "batch_sampler"):  # accelerate wraps the one that was there
            batches = batches.batch_sampler
        note(path, type(getattr(batches, "sampler", self.sampler)).__name__, len(self.dataset))
        return iterate(self)

    loader.__iter__ = noted


def note_preparation(path: str) -> None:
    """Have it written down when accelerate takes a loader over: then several ranks seed the generator they share."""
    try:
        from accelerate import Accelerator
    except ImportError:
        return
    prepare = Accelerator.prepare

    def noted(self: Any, *objects: Any, **named: Any) -> Any:
        note(path, "prepare", 0)
        return prepare(self, *objects, **named)

    Accelerator.prepare = noted


def note(path: str, what: str, samples: int) -> None:
    """A line of the file, by the first rank alone."""
    if int(os.environ.get("RANK", "0")) == 0:
        with open(path, "a") as file:
            print(json.dumps({"words": words_drawn(), "sampler": what, "samples": samples}), file=file)


def stand_in_for_gpus() -> None:
    """The CPU and gloo where a script asks for a GPU and NCCL."""
    begin: Any = torch.distributed.init_process_group
    wrapper: Any = torch.nn.parallel.DistributedDataParallel
    make: Any = torch.tensor

    def begin_with_gloo(*words: Any, **named: Any) -> None:
        begin(*words, **{**named, "backend": "gloo"})

    class WrapperOnCpu(wrapper):
        def __init__(self, module: Any, device_ids: object = None, **named: Any) -> None:
            super().__init__(module, **named)

    def make_on_cpu(data: Any, device: object = None, **named: Any) -> Any:
        return make(data, device="cpu" if device == "cuda" else device, **named)

    torch.cuda.set_device = lambda device: None
    torch.distributed.init_process_group = begin_with_gloo
    torch.nn.parallel.DistributedDataParallel = WrapperOnCpu
    torch.tensor = make_on_cpu


if __name__ == "__main__":
    if os.environ.get("WILD_WORDS"):
        note_iterations(os.environ["WILD_WORDS"])
        note_preparation(os.environ["WILD_WORDS"])
    if os.environ.get("WILD_CPU"):
        stand_in_for_gpus()
    if os.environ.get("WILD_SEED"):
        torch.manual_seed(int(os.environ["WILD_SEED"]))
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
