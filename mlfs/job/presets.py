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
    # ultralytics/data/build.py: a generator seeded with 6148914691236517205 + RANK (-1 for one process) + the trainer's
    # seed, one iterator for all epochs. Under DDP it is DistributedSampler.
    "ultralytics": {
        "sampler": "torch-random",
        "generator": "shared",
        "persistent_workers": True,
        "seed": 6148914691236517204,
        "batch_size": 16,
    },
    # monai/data/dataloader.py and torch_geometric/loader/dataloader.py are torch's.
    "monai": {"sampler": "torch-random"},
    "torch-geometric": {"sampler": "torch-random"},
    # torchdata/nodes/samplers, RandomSampler without a generator and without a DataLoader around it.
    "torchdata-nodes": {"sampler": "composed", "generator": "sampler"},
    # mmengine/dataset/sampler.py: DefaultSampler and InfiniteSampler with the runner's seed.
    "mmengine": {"sampler": "torch-distributed"},
    "mmengine-infinite": {"sampler": "composed", "endless": True},
    # detectron2/data/samplers/distributed_sampler.py: the seed is drawn after seed_all_rng(cfg.SEED).
    "detectron2": {"sampler": "composed", "endless": True, "seed_drawn_by": "numpy-legacy"},
    "detectron2-repeat-factor": {
        "sampler": "composed",
        "draw": "repeat-factors",
        "endless": True,
        "seed_drawn_by": "numpy-legacy",
    },
    # fastai/data/load.py: DataLoader of 64, made first after set_seed; the training one drops its last batch.
    "fastai": {
        "sampler": "composed",
        "generator": "python",
        "draw": "sample",
        "seed_drawn_by": "python",
        "seeding": "drawn",
        "batch_size": 64,
        "loader_drop_last": True,
    },
    # webdataset/compat.py, WebDataset: split_by_node, split_by_worker, then each worker shuffles its shards.
    "webdataset": {
        "sampler": "composed",
        "layout": "braces",
        "draw": "filling-buffer",
        "generator": "python",
        "seeding": "same",
        "buffer_size": 100,
        "worker_dealing": "parts",
    },
    # litdata/streaming/dataset.py: StreamingDataset under a StreamingDataLoader.
    "litdata": {"sampler": "litdata", "layout": "litdata", "seed": 42},
    # datasets/iterable_dataset.py: IterableDataset.shuffle.
    "hf-streaming": {"sampler": "hf-streaming", "layout": "sorted"},
    # ignite/engine/deterministic.py: DeterministicEngine.
    "ignite-deterministic": {
        "sampler": "composed",
        "generator": "default",
        "seed_drawn_by": "torch",
        "seed_below": 10**9,
        "seeding": "seed+epoch",
    },
    # transformers/trainer.py with group_by_length: LengthGroupedSampler.
    "hf-trainer-by-length": {
        "sampler": "composed",
        "generator": "loader",
        "grouping": "by-length",
        "dealing": "even-batches",
        "seed": 42,
        "batch_size": 8,
    },
    # pytorch_metric_learning/samplers/m_per_class_sampler.py, of np.random.seed.
    "m-per-class": {
        "sampler": "composed",
        "generator": "numpy-legacy",
        "draw": "per-group",
        "per_group": 4,
        "column": "directory",
    },
    # torchvision references/detection/train.py under torchrun, and references/video_classification/train.py alone.
    "torchvision-detection": {
        "sampler": "composed",
        "seeding": "seed+epoch",
        "dealing": "padded",
        "grouping": "batches",
        "seed": 0,
        "batch_size": 2,
    },
    "torchvision-clips": {"sampler": "composed", "generator": "loader", "draw": "clips", "per_group": 5},
    # speechbrain/dataio/sampler.py: ReproducibleRandomSampler.
    "speechbrain": {"sampler": "composed", "seeding": "seed+epoch+1", "seed": 563375142},
    # lhotse/dataset/sampling/simple.py: SimpleCutSampler(max_cuts, shuffle, drop_last).
    "lhotse": {
        "sampler": "composed",
        "generator": "python",
        "seeding": "seed+epoch",
        "dealing": "batches",
        "drop_last": True,
        "seed": 0,
    },
    # spdl/source: DistributedRandomSampler.
    "spdl": {"sampler": "composed", "generator": "numpy", "draw": "sample", "seeding": "seed+epoch", "seed": 0},
    # df.sample(frac=1, random_state=seed) and sklearn.utils.shuffle in each epoch.
    "pandas": {"sampler": "composed", "generator": "numpy-legacy", "seeding": "same"},
    # df.sample(fraction=1, shuffle=True, seed=seed) in each epoch.
    "polars": {"sampler": "composed", "generator": "polars", "seeding": "same"},
    # jax.random.permutation(jax.random.fold_in(key, epoch), n).
    "jax": {"sampler": "composed", "generator": "jax", "seeding": "fold-in"},
    # nanoGPT's train.py, its defaults in one process; of several each takes fewer batches a step.
    "nanogpt": {
        "sampler": "sequential",
        "layout": "nanogpt",
        "contiguous": True,
        "seed": 1337,
        "batch_size": 12,
        "sequence_length": 1024,
        "eval_interval": 2000,
        "eval_batches": 200,
        "batches_a_step": 40,
    },
}
