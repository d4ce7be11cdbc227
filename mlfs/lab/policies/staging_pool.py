"""Staging pool: double buffering from the PFS, as PyTorch's and TensorFlow's loaders do (NoPFS, Section 6).

Pure. In: a view. Out: every read from the PFS; the next batch is loaded while this one is computed.
"""

from __future__ import annotations

from mlfs.lab.policies.naive import Naive
from mlfs.lab.policies.policy import Overlap, Policy, Traits

POLICY = Policy("staging_pool", "double buffering from the PFS, no cache (NoPFS, Sec. 6)", Traits(Overlap.BATCH), Naive)
