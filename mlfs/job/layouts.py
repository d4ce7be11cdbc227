"""The layouts that a job may name, and the fields that each of them reads.

In: nothing. Out: names and fields. How a layout finds its samples is `mlfs.orders.layouts`, which has a module for each
of these names (tests/orders/test_orders_layouts.py compares them).
"""

from __future__ import annotations

from typing import Final

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
}


def layout_names() -> list[str]:
    """The names that a job's `layout` may have."""
    return list(_FIELDS)


def layout_fields(name: str) -> frozenset[str]:
    """The fields of a job that a layout reads, besides `root` and `layout`."""
    return _FIELDS.get(name, _EXTENSIONS)
