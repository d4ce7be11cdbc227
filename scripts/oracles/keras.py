"""keras.utils.image_dataset_from_directory, with the decoding of images replaced by their names."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from oracles.case import Case

DISTRIBUTION = "keras"


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Parts and wholes, with and without shuffling, and both parts at once."""
    for _ in range(count):
        n, batch = draw.randint(2, 90), draw.randint(1, 8)
        seed = draw.choice((0, 1, draw.randrange(1 << 32)))
        job: dict[str, Any] = {"sampler": "keras", "batch_size": batch, "seed": seed}
        words: dict[str, Any] = {"seed": seed, "batch_size": batch}
        if draw.random() < 0.3:
            job["shuffle"] = words["shuffle"] = False
        split = draw.choice((0.2, 0.5, round(draw.uniform(0.05, 0.9), 3)))
        if draw.random() < 0.7 and 1 <= int(split * n) < n:
            job |= {"validation_split": split, "subset": draw.choice(("training", "validation"))}
            words |= {"validation_split": split, "subset": job["subset"]}
            if draw.random() < 0.3:
                words["subset"] = "both"
                if job["subset"] == "validation":
                    job["shuffle_validation"] = False
        if draw.random() < 0.3:
            job["global_seed"] = draw.randrange(1 << 31)
        yield Case(job, n, _reads(n, job, words))


def _reads(n: int, job: dict[str, Any], words: dict[str, Any]) -> list[tuple[int, int, list[int]]]:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    import keras
    import tensorflow as tf
    from keras.src.utils import image_dataset_utils
    from tensorflow.python.eager import context

    context.context()._set_global_seed(None)
    if "global_seed" in job:
        tf.random.set_seed(job["global_seed"])
    with tempfile.TemporaryDirectory() as root:
        for index in range(n):
            path = Path(root, f"class{index * 3 // n}", f"{index:04d}.png")
            path.parent.mkdir(exist_ok=True)
            path.touch()
        with mock.patch.object(image_dataset_utils, "_load_image_tf", lambda path, *_: path):
            made = keras.utils.image_dataset_from_directory(root, label_mode=None, verbose=False, **words)
        if words.get("subset") == "both":
            made = made[job["subset"] == "validation"]
        return [
            (epoch, 0, [int(Path(name.decode()).stem) for batch in made.as_numpy_iterator() for name in batch])
            for epoch in range(3)
        ]
