"""The specification of a registered training run: what a user tells mlfs so that it can compute the order of reads.

In: one JSON object, as written by a user (`mlfs register`, the control file). Out: a checked, frozen `JobSpec`, or one
`JobError` line that names the field, its value and what is allowed. Called by the command line, the daemon's control
files, the simulator and everything in `mlfs.orders`.

A field's `description` is both its documentation (in `job_schema`) and the "must be ..." of its error message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, NoReturn, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from mlfs.errors import JobError
from mlfs.orders.registry import sampler_names

Layout = Literal["imagefolder", "sorted"]
LAYOUTS: Final = get_args(Layout)

# Each rank costs an entry in a few lists: a mistyped world size should not fill the memory.
MAX_WORLD_SIZE = 1_000_000
_MAX_SHOWN = 80
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_PLACEHOLDERS = ("{epoch}", "{rank}")
_RANK_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def _show(value: object) -> str:
    """The value as the user wrote it in JSON, on one line, shortened, printable on any terminal."""
    text = '"' + repr(value)[1:-1] + '"' if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _nearest(word: object, known: Iterable[str]) -> str:
    """A hint with the nearest known word, or an empty one."""
    near = get_close_matches(str(word).lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean {_show(near[0])}?" if near else ""


def _refuse(field: str, value: object, allowed: str, hint: str = "") -> NoReturn:
    raise JobError(f"job field {_show(field)} is {_show(value)}, must be {allowed}", hint, field)


def _is_path(text: str) -> bool:
    """Whether it can be a path: no NUL, and nothing but what os.fsdecode would give (PEP 383)."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _parse_ranks(value: Any, info: ValidationInfo) -> tuple[int, ...]:
    """Expand `3`, `"0-3,6"` or a list of both; None means every rank of the world."""
    world_size = info.data.get("world_size")
    if world_size is None:  # refused already: that is the error to report
        return ()
    if value is None:
        return tuple(range(world_size))
    allowed = f'different ranks from 0 to {world_size - 1} (the world has {world_size}), as [0, 1] or "0-3,6"'
    ranks: list[int] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        for low, high in _rank_ranges(item):
            if not 0 <= low <= high < world_size:
                _refuse("ranks", value, allowed)
            ranks.extend(range(low, high + 1))
        if len(ranks) > world_size:
            _refuse("ranks", value, allowed, "a rank is named twice")
    if not ranks:
        _refuse("ranks", value, allowed, "leave the field out to mean every rank")
    if len(set(ranks)) < len(ranks):
        _refuse("ranks", value, allowed, "a rank is named twice")
    return tuple(ranks)


def _rank_ranges(item: object) -> list[tuple[int, int]]:
    """The (first, last) pairs of one item of `ranks`; an impossible pair stands for what cannot be read."""
    if isinstance(item, int) and not isinstance(item, bool):
        return [(item, item)]
    if not isinstance(item, str):
        return [(-1, -1)]
    found = [_RANK_RANGE.fullmatch(part) for part in item.split(",")]
    return [(int(m[1]), int(m[2] or m[1])) if m else (-1, -1) for m in found]


Ranks = Annotated[
    tuple[int, ...],
    BeforeValidator(_parse_ranks),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\d+(-\d+)?(,\d+(-\d+)?)*$"},
                {"type": "integer", "minimum": 0},
                {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}},
                {"type": "null"},
            ]
        }
    ),
]


class JobSpec(BaseModel):
    """One registered training run; see docs/orders.md for what each sampler makes of the fields.

    Fields stand in the order in which they are checked: a field may look at those above it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, title="mlfs job")

    name: str = Field(
        "train", description="1 to 64 letters, digits, '.', '_' or '-'", pattern=r"^[A-Za-z0-9._-]{1,64}$"
    )
    root: str = Field(
        "", description='a sub-directory of the source, relative and without ".."; "" is the whole source'
    )
    layout: Layout = Field("imagefolder", description=" or ".join(f'"{name}"' for name in LAYOUTS))
    extensions: tuple[str, ...] | None = Field(
        None, description='null for the layout\'s own, or a list of file name endings, such as ["jpg", "png"]'
    )
    sampler: str = Field("torch-distributed", description="the name of a sampler")
    seed: int = Field(0, description="a whole number of any size and sign")
    epochs: int = Field(description="a whole number, 1 or more", ge=1)
    batch_size: int = Field(1, description="a whole number, 1 or more: samples a rank reads in one step", ge=1)
    world_size: int = Field(1, description=f"a whole number, 1 to {MAX_WORLD_SIZE}", ge=1, le=MAX_WORLD_SIZE)
    ranks: Ranks = Field(
        None,
        description='the ranks that read through this mount, as [0, 1] or "0-3,6"; all by default',
        validate_default=True,
    )
    shuffle: bool = Field(True, description="true or false")
    drop_last: bool = Field(False, description="true or false: the sampler's drop_last, not the loader's")
    start_epoch: int = Field(0, description="a whole number, 0 or more, less than epochs", ge=0)
    start_step: int = Field(0, description="a whole number, 0 or more: steps of the first epoch already done", ge=0)
    order_file: str | None = Field(
        None,
        description='the absolute path of a file, in which "{epoch}" and "{rank}" are replaced (explicit sampler only)',
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name in (".", ".."):  # the name becomes a file name in the control directory
            _refuse("name", name, 'other than "." and ".."')
        return name

    @field_validator("root")
    @classmethod
    def _check_root(cls, root: str) -> str:
        parts = [part for part in root.split("/") if part not in ("", ".")]
        if root.startswith("/") or ".." in parts or not _is_path(root):
            _refuse("root", root, _describe("root"), "the source is the directory that is mounted over")
        return "/".join(parts)

    @field_validator("extensions", mode="before")
    @classmethod
    def _check_extensions(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
            _refuse("extensions", value, _describe("extensions"))
        endings = tuple(dict.fromkeys(item.lower().removeprefix(".") for item in value))
        if any(not ending or "/" in ending or not _is_path(ending) for ending in endings):
            _refuse("extensions", value, _describe("extensions"))
        return endings

    @field_validator("sampler")
    @classmethod
    def _check_sampler(cls, sampler: str) -> str:
        known = sampler_names()
        if sampler not in known:
            _refuse("sampler", sampler, "one of " + ", ".join(known), _nearest(sampler, known))
        return sampler

    @field_validator("start_epoch")
    @classmethod
    def _check_start_epoch(cls, start_epoch: int, info: ValidationInfo) -> int:
        epochs = info.data.get("epochs")
        if epochs is not None and start_epoch >= epochs:
            _refuse("start_epoch", start_epoch, f"less than epochs, which is {epochs}", "epochs count from 0")
        return start_epoch

    @field_validator("order_file")
    @classmethod
    def _check_order_file(cls, path: str | None) -> str | None:
        if path is None:
            return None
        if not path.startswith("/") or path.endswith("/") or not _is_path(path):
            _refuse("order_file", path, _describe("order_file"), "the daemon does not know your working directory")
        for found in _PLACEHOLDER.findall(path):
            if found not in _PLACEHOLDERS:
                allowed = "a path with no other placeholders than " + " and ".join(_PLACEHOLDERS)
                _refuse("order_file", path, allowed, _nearest(found, _PLACEHOLDERS))
        return path

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.sampler == "explicit" and self.order_file is None:
            message = 'job field "order_file" is missing: the sampler "explicit" reads the order from it'
            raise JobError(message, "give the absolute path of a file with one path or index a line", "order_file")
        if self.sampler in ("torch-distributed", "sequential") and self.order_file is not None:
            allowed = f'left out: the sampler "{self.sampler}" reads no file'
            _refuse("order_file", self.order_file, allowed, 'or set "sampler": "explicit"')
        return self

    def to_json(self) -> str:
        """This job as one line of JSON; `parse_job` gives back an equal one."""
        return json.dumps(self.model_dump())


def _describe(field: str) -> str:
    return JobSpec.model_fields[field].description or "something else"


def job_schema() -> dict[str, Any]:
    """The JSON schema of a job."""
    return JobSpec.model_json_schema()


def parse_job(text: str | bytes | Mapping[str, Any]) -> JobSpec:
    """Return the job that a JSON object describes.

    Args:
        text: JSON text (bytes: UTF-8), or an object parsed already.

    Raises:
        JobError: with one line about the first thing that is wrong; its `field` is "" when it is about no field.
    """
    given = _load(text)
    known = list(JobSpec.model_fields)
    for field in given:
        if field not in known:
            hint = _nearest(field, known) or "known are " + ", ".join(known)
            raise JobError(f"job field {_show(field)} is unknown", hint, field)
    try:
        return JobSpec.model_validate(given)
    except ValidationError as error:
        raise _translate(error) from None


def _load(text: str | bytes | Mapping[str, Any]) -> dict[str, Any]:
    """The object in the text, of nothing but JSON's own types."""
    hint = 'write it like {"seed": 42, "epochs": 90}'
    try:
        if isinstance(text, Mapping):  # through JSON and back, so that both ways in allow exactly the same
            text = json.dumps(dict(text))
        given = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise JobError(f"the job is not JSON: {reason}", hint) from None
    if not isinstance(given, dict):
        raise JobError(f"the job is {_show(given)}, must be a JSON object", hint)
    return given


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field, value in pairs:
        if field in fields:
            raise JobError(f"job field {_show(field)} is given twice", "keep one of them", field)
        fields[field] = value
    return fields


def _translate(error: ValidationError) -> JobError:
    """The first complaint of pydantic in our words."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    allowed = _describe(field)
    if first["type"] == "missing":
        return JobError(f"job field {_show(field)} is missing, must be {allowed}", f'add "{field}": ...', field)
    value = first["input"]
    hint = _nearest(value, LAYOUTS) if field == "layout" else ""
    return JobError(f"job field {_show(field)} is {_show(value)}, must be {allowed}", hint, field)
