"""Samplers of frameworks with readers of their own: DALI, Grain, tf.data, Keras."""

from typing import Final

from mlfs.orders.catalogue.contract import Sampler

SAMPLERS: Final[tuple[Sampler, ...]] = ()
