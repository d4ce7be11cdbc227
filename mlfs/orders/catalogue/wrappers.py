"""Samplers of what is built around torch, and of numpy: accelerate, HF Trainer, timm, HF datasets, Paddle."""

from typing import Final

from mlfs.orders.catalogue.contract import Sampler

SAMPLERS: Final[tuple[Sampler, ...]] = ()
