"""Samplers of torch itself, and those that need no framework."""

from typing import Final

from mlfs.orders.catalogue.contract import Sampler, fields

SAMPLERS: Final = (
    Sampler(
        "torch-distributed",
        "mlfs.orders.torch_distributed:DistributedOrder",
        fields("seed shuffle drop_last set_epoch"),
    ),
    Sampler("sequential", "mlfs.orders.sequential:SequentialOrder", fields("drop_last")),
    Sampler("explicit", "mlfs.orders.explicit:ExplicitOrder", fields("order_file"), fields("order_file")),
)
