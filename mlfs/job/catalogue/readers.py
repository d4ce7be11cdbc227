"""Samplers of frameworks with readers of their own: DALI, Grain, tf.data, Keras."""

from typing import Final

from mlfs.job.catalogue.sampler import Sampler, fields

_PASSES: Final = fields("passes_before passes_between")

SAMPLERS: Final[tuple[Sampler, ...]] = (
    Sampler(
        "dali",
        "mlfs.orders.dali:DaliOrder",
        fields("shuffle shuffle_after_epoch stick_to_shard dali_version"),
        defaults={"shuffle": False},
    ),
    Sampler("grain", "mlfs.orders.grain:GrainOrder", fields("seed shuffle drop_last")),
    Sampler(
        "tf-data",
        "mlfs.orders.tf_data:TfDataOrder",
        fields("seed op_seed global_seed shuffle buffer_size reshuffle_each_iteration list_seed shard_first") | _PASSES,
    ),
    Sampler(
        "keras",
        "mlfs.orders.keras:KerasOrder",
        fields("seed global_seed shuffle validation_split subset shuffle_validation") | _PASSES,
    ),
    Sampler(
        "keras-pydataset",
        "mlfs.orders.keras_py_dataset:PyDatasetOrder",
        fields("seed shuffle words_before passes_before"),
    ),
)
