"""The flags that describe a job: one for each field, made from the job's own description.

In: a parser, then its arguments. Out: the fields that were given, with JSON's types. A word where a number belongs is
an error here; `mlfs.job` judges whether values go together. Used by `mlfs register`, `mlfs order` and `mlfs plan`.
"""

from __future__ import annotations

import argparse
import functools
import os
import types
import typing
from collections.abc import Callable
from typing import Any, get_args, get_origin

from mlfs.errors import ConfigError
from mlfs.job import JobSpec, describe, group_of
from mlfs.job.names import sampler_names
from mlfs.job.ranks import ranks_in
from mlfs.user_input import shortened

_METAVARS = {
    "extensions": ".A,.B",
    "columns": "A,B",
    "split": "A,B",
    "document_split": "A,B,C",
    "ranks": "LIST",
    "root": "DIR",
}
_DEFAULTS = {
    **dict.fromkeys(
        ("preset", "split", "split_seed", "order_file", "weights_file", "manifest_file", "subset_file"), "none"
    ),
    **{"split_by": "torch", "split_rounding": "spread", "split_order": "drawn", "stratified": "no", "pattern": "*/*"},
    **{"without_part": "none", "cached_samples": 0},
    **{"serve": "none", "level": 0.9},
    **dict.fromkeys(("num_workers", "prefetch_factor"), "found out"),
    **{"root": "MOUNT itself", "ranks": "all", "extensions": "the layout's own", "part": 0},
    **{"columns": "the largest, or all", "document_split": "all", "sequence_length": "none"},
    **{"persistent_workers": "no", "words_before": 0, "words_between": 0, "words_once": 0},
}
# These only a JSON object can say: the language's version, and what the mount fills in by itself.
NO_FLAGS = ("version", "nodes", "left_off")


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each field, in groups."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in JobSpec.model_fields:
        if field in NO_FLAGS:
            continue
        title = group_of(field)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flag = "--" + field.replace("_", "-")
        text = _help(field).replace("%", "%%")
        if kind_of(field) is bool:
            groups[title].add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        else:
            groups[title].add_argument(flag, metavar=_metavar(field), type=_reader(field), help=text)


def given_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields whose flags were given."""
    values = {field: getattr(args, field, None) for field in JobSpec.model_fields if field not in NO_FLAGS}
    return {field: value for field, value in values.items() if value is not None}


def parse_ranks(text: str) -> list[int]:
    """`0-3` -> [0, 1, 2, 3]; `0,2,5-7` -> [0, 2, 5, 6, 7]. Raises ConfigError."""
    ranks = ranks_in(text)
    if not ranks:
        raise ConfigError(f"--ranks: {text!r} is not a list of ranks", "write for example 0-3 or 0,2,5-7")
    return sorted(set(ranks))


@functools.cache
def kind_of(field: str) -> Any:
    """The type of a field's value: bool, int, float, tuple or str."""
    annotation = JobSpec.model_fields[field].annotation
    if get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    kind = get_origin(annotation) or annotation
    kind = get_args(annotation)[0] if kind is typing.Annotated else kind
    return kind if kind in (bool, int, float, tuple) else str


def _metavar(field: str) -> str:
    by_kind = {int: "N", float: "X", tuple: "LIST", str: "WORD"}
    return _METAVARS.get(field, "FILE" if field.endswith("_file") else by_kind[kind_of(field)])


def _help(field: str) -> str:
    text = describe(field)
    if field == "sampler":
        text = f"the order of the reads: {', '.join(sampler_names())}"
    for start in ("true or false: ", "true or false", "a whole number of any size and sign: ", "the absolute path of "):
        text = text.removeprefix(start)
    default = JobSpec.model_fields[field].default
    if JobSpec.model_fields[field].is_required():
        return text
    shown: object = "the sampler's own" if default is None else default
    if isinstance(default, bool):
        shown = "yes" if default else "no"
    shown = _DEFAULTS.get(field, shown)
    return f"{text or 'as in the framework'} (default: {shown})"


def _reader(field: str) -> Callable[[str], Any]:
    if field == "ranks":
        return parse_ranks
    if field == "extensions":
        return lambda text: [_extension(part) for part in text.split(",") if part.strip()]
    if field == "columns":
        return lambda text: [part for part in text.split(",") if part]
    if field.endswith("_file"):
        return os.path.abspath  # because the daemon has another working directory
    kind = kind_of(field)
    if kind is tuple:
        return lambda text: [_number(field, part, float) for part in text.split(",")]
    return str if kind is str else lambda text: _number(field, text, kind)


def _extension(text: str) -> str:
    return "." + text.strip().removeprefix(".").lower()


def _number(field: str, text: str, kind: type) -> int | float:
    try:
        return int(text)
    except ValueError:
        if kind is float:
            try:
                return float(text)
            except ValueError:
                pass
    raise argparse.ArgumentTypeError(f"is {shortened(text)!r}, must be {describe(field)}")
