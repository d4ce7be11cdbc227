"""The built-in samplers: what is known of each before its module is imported.

In: nothing. Out: the record `Sampler` of each, in a table for each family of frameworks, so that a new one is one line
in one table. Used by `mlfs.job.names` (where is its order, may this field be given?).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Sampler(NamedTuple):
    """One sampler.

    Attributes:
        name: what a job calls it.
        factory: where its `OrderFactory` is, as "module:object".
        fields: the fields of a job that it reads, besides those that every job has (`mlfs.job.COMMON`). A field that
            is given and not read is refused: the user believes that it changes something.
        required: those without which it cannot tell the order.
        defaults: values for fields that were not given, where the framework's own default is not the job's.
        words: of a field whose words mean something to other samplers, those that mean something to this one.
    """

    name: str
    factory: str
    fields: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    defaults: Mapping[str, object] = {}
    words: Mapping[str, tuple[str, ...]] = {}


def fields(names: str) -> frozenset[str]:
    """A set of fields from their names with spaces between."""
    return frozenset(names.split())


# -- samplers of torch itself, and those that need no framework

_PASSES: Final = fields("passes_before passes_between")

_GENERATOR: Final = fields("seed generator words_before words_between")
_ONCE: Final = fields("words_once")
_OF_TORCH: Final = {"generator": ("default", "own", "shared")}
_LIBRARIES: Final = ("torch", "loader", "sampler", "numpy", "numpy-legacy", "python", "polars", "jax", "datapipe",
                     "tensorflow", "cpp", "cpp-64", "grain")  # fmt: skip

_TORCH: Final = (
    Sampler(
        "torch-distributed",
        "mlfs.orders.torch_samplers:distributed_order",
        fields("seed shuffle drop_last set_epoch"),
    ),
    Sampler(
        "torch-random",
        "mlfs.orders.torch_samplers:random_order",
        _GENERATOR | _ONCE | fields("trailing_permutation replacement num_samples"),
        defaults={"generator": "default"},
        words=_OF_TORCH,
    ),
    Sampler(
        "torch-subset",
        "mlfs.orders.torch_samplers:subset_order",
        _GENERATOR | _ONCE,
        defaults={"generator": "default"},
        words=_OF_TORCH,
    ),
    Sampler(
        "torch-weighted",
        "mlfs.orders.torch_samplers:weighted_order",
        _GENERATOR | _ONCE | fields("weights_file replacement num_samples"),
        fields("weights_file"),
        {"generator": "default", "replacement": True},
        _OF_TORCH,
    ),
    Sampler(
        "torch-stateful",
        "mlfs.orders.torch_samplers:stateful_order",
        _GENERATOR | fields("replacement num_samples"),
        fields("num_workers"),  # with workers it shuffles twice an epoch
        {"generator": "default"},
        _OF_TORCH,
    ),
    Sampler(
        "composed",
        "mlfs.orders.composed:ComposedOrder",
        _GENERATOR
        | fields("draw seeding seed_drawn_by seed_below dealing worker_dealing shard_first endless epoch_steps")
        | _PASSES
        | _ONCE
        | fields("weights_file per_group groups_at_once column column_file grouping group_batch")
        | fields("num_samples drop_last trailing_permutation buffer_size buffer_first block_size copies repeats"),
        defaults={"generator": "torch"},
        words={"generator": (*_OF_TORCH["generator"], *_LIBRARIES)},
    ),
    Sampler("sequential", "mlfs.orders.libraries:sequential_order", fields("drop_last contiguous")),
    Sampler("explicit", "mlfs.orders.order_file:ExplicitOrder", fields("order_file"), fields("order_file")),
)

# -- samplers of what is built around torch, and of numpy: accelerate, HF Trainer, timm, HF datasets, Paddle

_ACCELERATE: Final = fields(
    "seed data_seed generator shuffle drop_last use_seedable_sampler split_batches even_batches dispatch_batches"
    " words_before words_between words_once trailing_permutation"
)

_WRAPPERS: Final[tuple[Sampler, ...]] = (
    Sampler("accelerate", "mlfs.orders.torch_samplers:accelerate_order", _ACCELERATE, words=_OF_TORCH),
    Sampler(
        "hf-trainer",
        "mlfs.orders.torch_samplers:accelerate_order",
        _ACCELERATE,
        defaults={"seed": 42, "use_seedable_sampler": True},
        words=_OF_TORCH,
    ),
    Sampler("ra-sampler", "mlfs.orders.torch_samplers:ra_sampler_order", fields("seed shuffle repeats set_epoch")),
    Sampler(
        "timm-repeat-aug",
        "mlfs.orders.torch_samplers:timm_repeat_aug_order",
        fields("shuffle repeats selected_round selected_ratio set_epoch"),
    ),
    Sampler("numpy", "mlfs.orders.libraries:loop_order", fields("seed drop_last legacy reseed in_place")),
    Sampler("python-random", "mlfs.orders.libraries:loop_order", fields("seed drop_last reseed in_place")),
    Sampler("hf-datasets", "mlfs.orders.libraries:loop_order", fields("seed reseed in_place")),
    Sampler(
        "hf-streaming",
        "mlfs.orders.libraries:hf_streaming_order",
        fields("seed shuffle set_epoch shards_at_once"),
    ),
    Sampler("paddle", "mlfs.orders.libraries:paddle_order", fields("shuffle drop_last")),
)

# -- samplers of frameworks with readers of their own: DALI, Grain, MosaicML, litdata, tf.data, Keras

_READERS: Final[tuple[Sampler, ...]] = (
    Sampler(
        "dali",
        "mlfs.orders.libraries:dali_order",
        fields("shuffle shuffle_after_epoch stick_to_shard dali_version list_seed"),
        defaults={"shuffle": False},
    ),
    Sampler(
        "mosaicml",
        "mlfs.orders.mosaicml:MosaicMLOrder",
        fields("seed shuffle shuffle_algo canonical_nodes physical_nodes block_size"),
        defaults={"seed": 9176},
    ),
    Sampler(
        "litdata",
        "mlfs.orders.litdata:LitDataOrder",
        fields("seed shuffle set_epoch drop_last physical_nodes buffer_size group_batch left_off"),
        defaults={"seed": 42},
    ),
    Sampler("grain", "mlfs.orders.libraries:GrainOrder", fields("seed shuffle drop_last")),
    Sampler(
        "tf-data",
        "mlfs.orders.libraries:tf_data_order",
        fields("seed op_seed global_seed shuffle buffer_size reshuffle_each_iteration list_seed shard_first") | _PASSES,
    ),
    Sampler(
        "keras",
        "mlfs.orders.libraries:keras_order",
        fields("seed global_seed shuffle validation_split subset shuffle_validation") | _PASSES,
    ),
    Sampler(
        "keras-pydataset",
        "mlfs.orders.libraries:py_dataset_order",
        fields("seed shuffle words_before passes_before"),
    ),
)

# -- all of them

BUILT_IN: Final[tuple[Sampler, ...]] = _TORCH + _WRAPPERS + _READERS
