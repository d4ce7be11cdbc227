"""Samplers of torch itself, and those that need no framework."""

from typing import Final

from mlfs.job.catalogue.sampler import Sampler, fields

_GENERATOR: Final = fields("seed generator words_before words_between")
_ONCE: Final = fields("words_once")

SAMPLERS: Final = (
    Sampler(
        "torch-distributed",
        "mlfs.orders.torch_distributed:DistributedOrder",
        fields("seed shuffle drop_last set_epoch"),
    ),
    Sampler(
        "torch-random",
        "mlfs.orders.torch_random:RandomOrder",
        _GENERATOR | _ONCE | fields("trailing_permutation replacement num_samples"),
        defaults={"generator": "default"},
    ),
    Sampler(
        "torch-subset", "mlfs.orders.torch_subset:SubsetOrder", _GENERATOR | _ONCE, defaults={"generator": "default"}
    ),
    Sampler(
        "torch-weighted",
        "mlfs.orders.torch_weighted:WeightedOrder",
        _GENERATOR | _ONCE | fields("weights_file replacement num_samples"),
        fields("weights_file"),
        {"generator": "default", "replacement": True},
    ),
    Sampler(
        "torch-stateful",
        "mlfs.orders.torch_stateful:StatefulOrder",
        _GENERATOR | fields("replacement num_samples"),
        fields("num_workers"),  # with workers it shuffles twice an epoch
        defaults={"generator": "default"},
    ),
    Sampler("sequential", "mlfs.orders.sequential:SequentialOrder", fields("drop_last contiguous")),
    Sampler("explicit", "mlfs.orders.explicit:ExplicitOrder", fields("order_file"), fields("order_file")),
)
