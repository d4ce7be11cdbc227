"""Bounds how long an order may be: what a registration may ask a mount to compute and to keep in memory.

In: a job's streams. Out: nothing, or a JobError that names the field to change. Called by mountd.control and
mlfs.cli.tree before the first epoch is computed.
"""

from __future__ import annotations

from typing import Final

from mlfs.errors import JobError
from mlfs.orders.streams import JobStreams

# A position takes 50 to 60 bytes while its epoch is prepared, and 80 to 120 in an opportunistic order: so the least
# limit is half a GiB to one GiB. Beyond that a run may read each of its samples so many times an epoch: its order takes
# no more, in proportion, than the tree itself.
LEAST_POSITIONS: Final = 1 << 23
MOST_READS: Final = 8


def check_reach(streams: JobStreams) -> None:
    """Refuse a job whose epochs are too long to be kept in memory. Raises: JobError."""
    spec, samples = streams.spec, len(streams.sample_ids)
    most = max(LEAST_POSITIONS, MOST_READS * samples * streams.files_per_sample)
    a_rank = streams.length(spec.start_epoch)
    positions = a_rank * (len(spec.ranks) if spec.serve is None else spec.world_size)  # a served order is all ranks'
    if positions <= most:
        return
    if a_rank > most:
        fields = ("num_samples", "order_file", "repeats")
        field = next((field for field in fields if getattr(spec, field) is not None), "world_size")
        field = "batch_size" if spec.batch_size > samples else field
    else:
        field = "ranks" if spec.serve is None else "serve"
    message = f'job field "{field}" is out of reach: an epoch has {positions:,} reads of {samples:,} samples'
    raise JobError(message, f"at most {most:,} reads an epoch can be followed on one node", field)
