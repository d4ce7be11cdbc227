"""The samplers and layouts that a job may name, and the fields that each of them reads.

In: `mlfs.job.catalogue`, the entry points of group `mlfs.orders` (name: the sampler; object: an `OrderFactory`). Out:
names, fields, and where a sampler's order is to be found. `mlfs.orders.order` loads it, nothing is loaded here.

The built-in ones are listed in the package and not in its metadata, so that a source checkout works, and so that no
other package can change what a known name means.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from mlfs.job.catalogue import BUILT_IN, Sampler

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "mlfs.orders"


@cache
def sampler_factories() -> dict[str, EntryPoint]:
    """The place of each sampler's `OrderFactory`, by the sampler's name."""
    # Imported here, as it brings email and zipfile: a mount starts without them, and some mounts have no job.
    from importlib.metadata import EntryPoint, entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    found.update({own.name: EntryPoint(own.name, own.factory, GROUP) for own in BUILT_IN})
    return found


def sampler_names() -> list[str]:
    """The names that a job's `sampler` may have: the built-in ones first."""
    own = [sampler.name for sampler in BUILT_IN]
    return own + sorted(set(sampler_factories()) - set(own))


def built_in(name: str) -> Sampler | None:
    """The record of a built-in sampler; None for another package's, which may read any field."""
    return next((sampler for sampler in BUILT_IN if sampler.name == name), None)


def readers_of(field: str) -> list[str]:
    """The built-in samplers that read a field."""
    return [sampler.name for sampler in BUILT_IN if field in sampler.fields]


# -- layouts
#
# How a layout finds its samples is `mlfs.orders.layouts`, which has a module for each of these names
# (tests/orders/test_orders_layouts.py compares them).

_EXTENSIONS: Final = frozenset({"extensions"})
_FIELDS: Final = {
    "imagefolder": _EXTENSIONS,
    "timm": _EXTENSIONS,
    "keras": _EXTENSIONS,
    "hf-imagefolder": _EXTENSIONS,
    "dali": _EXTENSIONS,
    "tf-list-files": _EXTENSIONS | {"pattern"},
    "sorted": _EXTENSIONS,
    "manifest": frozenset({"manifest_file"}),
    "npy": _EXTENSIONS,
    "raw": _EXTENSIONS | {"row_bytes", "header_bytes"},
    "ranges": frozenset({"manifest_file"}),
    "tar": _EXTENSIONS,
    "tfrecord": _EXTENSIONS,
    "array_record": _EXTENSIONS,
    "mds": frozenset(),
    "megatron": _EXTENSIONS,
    "litdata": frozenset(),
    "megatron-gpt": _EXTENSIONS | {"manifest_file", "sequence_length", "document_split", "num_samples", "seed"},
    "nanogpt": frozenset(
        {"sequence_length", "num_samples", "seed", "words_before", "eval_interval", "eval_batches", "batches_a_step"}
    ),
    "ffcv": _EXTENSIONS,
    "hdf5": _EXTENSIONS | {"columns"},
    "parquet": _EXTENSIONS | {"columns"},
    "arrow": _EXTENSIONS | {"columns"},
    "arrow-batches": _EXTENSIONS,
    "braces": frozenset({"pattern"}),
}


# Layouts whose readers open a file again and again, and before its turn: litdata's open each chunk three times, and the
# next four whenever they come to one (streaming/reader.py, litdata 0.2.76).
OPENED_AGAIN = frozenset({"litdata"})


def layout_names() -> list[str]:
    """The names that a job's `layout` may have."""
    return list(_FIELDS)


def layout_fields(name: str) -> frozenset[str]:
    """The fields of a job that a layout reads, besides `root` and `layout`."""
    return _FIELDS.get(name, _EXTENSIONS)
