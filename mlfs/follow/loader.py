"""The known facts of a job's loader, and where they are known from, for the status.

Pure. In: the loader's shape and depth as the reads tell them, and what was registered. Out: frozen numbers and words.
Called by `mlfs.follow.loader_watch`. A number is registered by the user, inferred together with the seed, learned from
the opens, or not known. A registered number that is borne out by the opens stays registered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlfs.follow.depth import Depth
from mlfs.follow.shape import Shape
from mlfs.job import JobSpec

REGISTERED, INFERRED, LEARNED, UNKNOWN = "registered", "inferred", "learned", "unknown"


@dataclass(frozen=True, slots=True)
class Known:
    """A number, None while it is not known, and where it is known from."""

    value: int | None
    origin: str = field(metadata={"key": "from"})


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """How the processes of a rank share its stream.

    Attributes:
        readers: the processes that take batches in turns, None where whoever is free takes the next one.
        depth_at_least, depth_at_most: bounds of the prefetch depth; the second is None until workers were seen to wait.
        early: how many places before its turn a sample may be opened.
    """

    readers: int | None
    batch_size: Known
    num_workers: Known
    prefetch_depth: Known
    depth_at_least: int = field(metadata={"key": None})
    depth_at_most: int | None = field(metadata={"key": None})
    early: int


def loader_of(
    spec: JobSpec,
    inferred: bool,
    files_per_sample: int,
    shape: Shape,
    depth: Depth,
    slack: int,
    shape_is_learned: bool,
) -> LoaderStatistics:
    """The facts of a job's loader, each with where it is known from.

    Args:
        inferred: whether nobody registered the job.
        files_per_sample: files that one sample of the script consists of.
        shape, depth: as the reads tell them; the shape's batch is 0 while it is not known.
        slack: the shape's slack as the matcher has it.
        shape_is_learned: whether reads told the shape; else it is what was registered, or a default.
    """

    def known(seen: int | None, field: str) -> Known:
        value = getattr(spec, field) if field in spec.model_fields_set else None
        if seen is not None and seen != value:
            return Known(seen, LEARNED)
        return Known(value, UNKNOWN if value is None else INFERRED if inferred else REGISTERED)

    batch = workers = None
    if shape_is_learned:
        batch = shape.batch // files_per_sample if shape.workers != 1 and shape.batch % files_per_sample == 0 else None
        workers = shape.workers if shape.workers > 1 else None
    return LoaderStatistics(
        readers=shape.workers or None,
        batch_size=known(batch, "batch_size"),
        num_workers=known(workers, "num_workers"),
        prefetch_depth=known(depth.exact, "prefetch_factor"),
        depth_at_least=depth.at_least,
        depth_at_most=depth.at_most,
        early=slack - 1,
    )
