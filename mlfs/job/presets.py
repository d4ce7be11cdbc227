"""Presets: the fields of a job as common training scripts set them.

In: a framework's name. Out: fields and values. Called by `mlfs.job.parse`, which fills in those that were not given and
that the job's sampler reads. Each preset names the source that it follows; docs/orders.md has the same table for users.
Fields that the first reads tell and most people choose for themselves, such as the number of workers, are in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # references/classification/train.py of torchvision under torchrun: DistributedSampler(dataset), set_epoch.
    "torchvision-reference": {
        "sampler": "torch-distributed",
        "layout": "imagefolder",
        "seed": 0,
        "batch_size": 32,
    },
    # lightning/fabric/utilities/distributed.py: DistributedSampler(seed=PL_GLOBAL_SEED or 0), set_epoch by itself.
    "lightning": {"sampler": "torch-distributed", "seed": 0},
    # accelerate/utils/dataclasses.py, DataLoaderConfiguration: no seedable sampler unless asked for.
    "accelerate": {"sampler": "accelerate"},
    # transformers/training_args.py: seed 42, per_device_train_batch_size 8; trainer_pt_utils.py: seedable sampler.
    "hf-trainer": {"sampler": "hf-trainer", "seed": 42, "batch_size": 8, "use_seedable_sampler": True},
    # keras/src/trainers/epoch_iterator.py on the TensorFlow backend, with the batch_size that
    # image_dataset_from_directory has unless told otherwise.
    "keras-fit": {"sampler": "keras", "layout": "keras", "batch_size": 32, "passes_between": 1},
    # timm: train.py and timm/data/loader.py, distributed, without --aug-repeats: DistributedSampler, set_epoch
    # each epoch; the loader for training drops its last batch.
    "timm": {
        "sampler": "torch-distributed",
        "layout": "timm",
        "seed": 0,
        "batch_size": 128,
        "persistent_workers": True,
        "loader_drop_last": True,
    },
}
