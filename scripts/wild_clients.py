"""The clients of `scripts/wild`: third-party training scripts, how each is run, and the line that registers it.

A table. In: nothing. Out: `CLIENTS`, by name. Imported by scripts/wild.py. Models are the smallest that each script
takes: mlfs sees reads, and the model decides only how many words a generator hands out before the first epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

IMAGENET_LOSS = r"^(?:Epoch|Test).*?Loss (\S+ \(\S+\))"
VISION_LOSS = r"^(?:Epoch|Test).*? loss: (\S+ \(\S+\))"
TIMM_LOSS = r"(?:Train|Test): .*?Loss: +(\S+ +\( *\S+\))"
TRAINER_LOSS = r"'(?:loss|eval_loss)': '?([\d.e+-]+)"
ACCURACY = r"epoch \d+: (\{'accuracy': \S+\})"


@dataclass(frozen=True)
class Client:
    """A script as its users run it.

    In `words` and `register`, {data} is the data set, {model} a tiny transformer, {epochs} and {workers} the options
    of the whole run; in `register` alone {words_before} and {words_between} are what torch's generator was seen to
    hand out.
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
    least: float = 1.0
    """Agreement that a registered run must have in each epoch."""


# Where the main process augments, each epoch's first reads tell its order: some 30 of 1,500 come before it is known.
AUGMENTS_LEAST = 0.95


def imagenet(name: str, workers: str = "{workers}", least: float = 1.0) -> Client:
    """pytorch/examples, one process, torch.manual_seed before the model is made."""
    return Client(
        name=name,
        script="examples/imagenet/main.py",
        words=f"{{data}} -a shufflenet_v2_x0_5 -j {workers} --epochs {{epochs}} -b 64 --seed 1 -p 1 --no-accel",
        register="--sampler torch-random --seed 1 --root train --epochs {epochs} --batch-size 64"
        " --words-before {words_before} --words-between {words_between}",
        losses=IMAGENET_LOSS,
        least=least,
    )


def torchvision(name: str, register: str, words: str = "", **more: Any) -> Client:
    """pytorch/vision's reference for classification. It has no flag for a seed."""
    return Client(
        name=name,
        script="vision/references/classification/train.py",
        words="--data-path {data} --model shufflenet_v2_x0_5 --device cpu -b 32 -j {workers} --epochs {epochs}"
        f" --print-freq 1 --train-crop-size 64 --val-resize-size 64 --val-crop-size 64 {words}",
        register=register,
        losses=VISION_LOSS,
        without_gpu=True,
        **more,
    )


def timm(name: str, register: str, words: str = "", ranks: int = 1) -> Client:
    """pytorch-image-models' train.py; its loaders keep their workers from epoch to epoch. Its seed is 42."""
    return Client(
        name=name,
        script="pytorch-image-models/train.py",
        words="--data-dir {data} --model test_resnet --num-classes 10 --img-size 64 --device cpu -b 32 -j {workers}"
        f" --epochs {{epochs}} --warmup-epochs 0 --log-interval 1 --output out {words}",
        register=register,
        losses=TIMM_LOSS,
        ranks=ranks,
        without_gpu=ranks > 1,
    )


def no_trainer(name: str, register: str, ranks: int = 1) -> Client:
    """transformers' example without Trainer: the main process loads, and its augmentation draws from the generator."""
    return Client(
        name=name,
        script="transformers/examples/pytorch/image-classification/run_image_classification_no_trainer.py",
        words="--dataset_name {data} --model_name_or_path {model} --seed 1 --per_device_train_batch_size 32"
        " --num_train_epochs {epochs} --output_dir out",
        register=register,
        losses=ACCURACY,
        ranks=ranks,
        outputs=("out/model.safetensors",),
        environment=(("ACCELERATE_USE_CPU", "true"),),
        least=AUGMENTS_LEAST if ranks == 1 else 1.0,
    )


_TORCHRUN = "--root train --epochs {epochs} --world-size 2 --ranks 0-1"
_WORDS = "--words-before {words_before} --words-between {words_between}"
_ALL = (
    imagenet("imagenet"),
    imagenet("imagenet-0-workers", workers="0", least=AUGMENTS_LEAST),
    torchvision("torchvision-torchrun", f"--preset torchvision-reference {_TORCHRUN}", ranks=2, seed=3),
    torchvision(
        "torchvision-ra-sampler",
        f"--sampler ra-sampler --batch-size 32 {_TORCHRUN}",
        words="--ra-sampler",
        ranks=2,
        seed=3,
    ),
    torchvision(
        "torchvision-alone",
        f"--sampler torch-random --seed 3 --root train --epochs {{epochs}} --batch-size 32 {_WORDS}",
        seed=3,
    ),
    torchvision("torchvision-unseeded", "", is_seeded=False),
    timm("timm-torchrun", f"--preset timm --batch-size 32 {_TORCHRUN}", ranks=2),
    timm(
        "timm-aug-repeats",
        f"--sampler timm-repeat-aug --layout timm --batch-size 32 --loader-drop-last {_TORCHRUN}",
        words="--aug-repeats 3",
        ranks=2,
    ),
    timm(
        "timm-alone",
        "--sampler torch-random --layout timm --seed 42 --root train --epochs {epochs} --batch-size 32"
        " --loader-drop-last --persistent-workers --words-before {words_before} --words-once 2",
    ),
    Client(
        name="hf-trainer",
        script="transformers/examples/pytorch/image-classification/run_image_classification.py",
        words="--train_dir {data}/train --validation_dir {data}/val --output_dir out --do_train --do_eval"
        " --num_train_epochs {epochs} --per_device_train_batch_size 32 --dataloader_num_workers {workers}"
        " --logging_steps 1 --remove_unused_columns False --use_cpu --report_to none --model_name_or_path {model}",
        register="--preset hf-trainer --layout hf-imagefolder --root train --epochs {epochs} --batch-size 32",
        losses=TRAINER_LOSS,
        outputs=("out/model.safetensors",),
    ),
    no_trainer(
        "hf-no-trainer",
        "--preset accelerate --layout hf-imagefolder --seed 1 --root train --epochs {epochs} --batch-size 32"
        f" {_WORDS}",
    ),
    no_trainer(
        "hf-no-trainer-torchrun",
        "--preset accelerate --layout hf-imagefolder --seed 1 --batch-size 32"
        f" --words-before {{words_before}} {_TORCHRUN}",
        ranks=2,
    ),
)
CLIENTS = {client.name: client for client in _ALL}
