"""The built-in samplers, a table for each family of frameworks, so that a new one is one line in one table."""

from typing import Final

from mlfs.job.catalogue import readers, torch, wrappers
from mlfs.job.catalogue.sampler import Sampler

BUILT_IN: Final[tuple[Sampler, ...]] = torch.SAMPLERS + wrappers.SAMPLERS + readers.SAMPLERS
