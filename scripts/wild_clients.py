"""The clients of `scripts/wild`: third-party training scripts, how each is run, and the line that registers it.

A table. In: nothing. Out: `CLIENTS`, by name. Imported by scripts/wild.py. Models are the smallest that each script
takes: mlfs sees reads, and the model decides only how many words a generator hands out before the first epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

IMAGENET_LOSS = r"^(?:Epoch|Test).*?Loss (\S+ \(\S+\))"
VISION_LOSS = r"^(?:Epoch|Test).*? loss: (\S+ \(\S+\))"


@dataclass(frozen=True)
class Client:
    """A script as its users run it.

    In `words` and `register`, {data} is the data set, {epochs} and {workers} are the options of the whole run;
    in `register` alone {words_before} and {words_between} are what torch's generator was seen to hand out.
    """

    name: str
    script: str
    """Below the directory of checkouts; its first part is the checkout."""
    words: str
    register: str
    """Flags of `mlfs register MOUNT`, for the training files."""
    losses: str
    """A pattern: its group is what is compared with a direct run."""
    ranks: int = 1
    """More than one: torchrun starts them."""
    outputs: tuple[str, ...] = ()
    """Files that the script leaves in its working directory, compared like losses."""
    seed: int | None = None
    """Seeds torch before the script begins, for one that has no flag for it."""
    without_gpu: bool = False
    """The script asks for GPUs: stand in for them."""
    environment: tuple[tuple[str, str], ...] = ()
    is_seeded: bool = True
    """Whether two runs train the same model."""


_ALL = (
    Client(
        name="imagenet",
        script="examples/imagenet/main.py",
        words="{data} -a shufflenet_v2_x0_5 -j {workers} --epochs {epochs} -b 64 --seed 1 -p 1 --no-accel",
        register="--sampler torch-random --seed 1 --root train --epochs {epochs} --batch-size 64"
        " --words-before {words_before} --words-between {words_between}",
        losses=IMAGENET_LOSS,
    ),
    Client(
        name="torchvision-torchrun",
        script="vision/references/classification/train.py",
        words="--data-path {data} --model shufflenet_v2_x0_5 --device cpu -b 32 -j {workers} --epochs {epochs}"
        " --print-freq 1 --train-crop-size 64 --val-resize-size 64 --val-crop-size 64",
        register="--preset torchvision-reference --root train --epochs {epochs} --world-size 2 --ranks 0-1",
        losses=VISION_LOSS,
        ranks=2,
        seed=3,
        without_gpu=True,
    ),
)
CLIENTS = {client.name: client for client in _ALL}
