"""Reads a job from JSON, and says in one line what is wrong with one that cannot be used.

In: JSON text or an object. Out: `JobSpec` or `JobError`; the JSON schema of the language. Called by the command line
and the control file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from mlfs.errors import JobError
from mlfs.job.catalogue import BUILT_IN
from mlfs.job.names import built_in, layout_fields, layout_names, readers_of
from mlfs.job.presets import PRESETS
from mlfs.job.refusals import nearest, show
from mlfs.job.resume import DESCRIPTION, RESUME, beginning
from mlfs.job.spec import COMMON, VERSION, JobSpec, describe

# MOUNT/.mlfs/jobs/NAME.json says these besides the fields of the job: how far it is, how long its data set is, and for
# a served order a hash of what it rests on in the tree (`mlfs.orders.served`).
SHOWN_BESIDES = frozenset({"state", "samples", "tree"})
COMPOSED = "composed"
# A job with one of these puts an order together, and need not say so: nothing else reads them.
PUTS_TOGETHER = frozenset(field for field in JobSpec.model_fields if readers_of(field) == [COMPOSED])
# Generators and draws as scripts call them.
_CALLED = {
    "random": "python", "random.random": "python", "np": "numpy", "default_rng": "numpy", "np.random": "numpy-legacy",
    "np.random.seed": "numpy-legacy", "randomstate": "numpy-legacy", "tf": "tensorflow", "tf.data": "tensorflow",
    "jax.random": "jax", "prngkey": "jax", "manual_seed": "torch", "randperm": "permutation", "choice": "sample",
    "choices": "with-replacement", "randint": "with-replacement", "multinomial": "weighted",
}  # fmt: skip


def job_schema() -> dict[str, Any]:
    """The JSON schema of a job. `x-samplers` lists the fields that each sampler reads, besides `x-common`."""
    schema = JobSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["layout"]["enum"] = layout_names()
    schema["properties"][RESUME] = {"type": ["integer", "string", "object"], "description": DESCRIPTION}
    schema["x-version"] = VERSION
    schema["x-common"] = [field for field in JobSpec.model_fields if field in COMMON]
    schema["x-samplers"] = {
        own.name: [field for field in JobSpec.model_fields if field in own.fields] for own in BUILT_IN
    }
    schema["x-presets"] = {name: dict(fields) for name, fields in PRESETS.items()}
    return schema


def only_fields(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job of what MOUNT/.mlfs/jobs/NAME.json says of it."""
    return {name: value for name, value in shown.items() if name not in SHOWN_BESIDES}


def parse_job(text: str | bytes | Mapping[str, Any]) -> JobSpec:
    """Return the job that a JSON object describes.

    Args:
        text: JSON text (bytes: UTF-8), or an object parsed already.

    Raises:
        JobError: with one line about the first thing that is wrong; its `field` is "" when it is about no field.
    """
    given = _load(text)
    known = [*JobSpec.model_fields, RESUME]
    for field in given:
        if field not in known:
            hint = nearest(field, known) or "known are " + ", ".join(known)
            raise JobError(f"job field {show(field)} is unknown", hint, field)
    resume = given.pop(RESUME, None)
    try:
        spec = JobSpec.model_validate(_filled(given))
        if resume is None:
            return spec
        return JobSpec.model_validate(_filled(given | beginning(resume, given, spec)))
    except ValidationError as error:
        raise _translate(error) from None


def check_values(given: Mapping[str, Any]) -> None:
    """Check that each field alone may have its value, whichever sampler reads it. Raises: JobError."""
    try:
        JobSpec.model_validate({"epochs": 1} | {name: given[name] for name in JobSpec.model_fields if name in given})
    except ValidationError as error:
        raise _translate(error) from None
    except JobError as error:
        if error.field in ("sampler", "preset"):  # others may be about fields that do not go together
            raise


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    """The given fields, completed by those of the preset and by the sampler's own defaults."""
    name = given.get("preset")
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    by_parts = given.keys() & PUTS_TOGETHER or str(given.get("generator")) in _of_parts()
    usual = COMPOSED if by_parts else JobSpec.model_fields["sampler"].default
    chosen = given.get("sampler", preset.get("sampler", usual))
    sampler = built_in(chosen) if isinstance(chosen, str) else None
    read = (
        COMMON
        | (sampler.fields if sampler else frozenset())
        | layout_fields(str(given.get("layout", preset.get("layout"))))
    )
    own = dict(sampler.defaults) if sampler else {}
    own |= {"sampler": usual} if usual == COMPOSED == chosen else {}
    return own | {field: value for field, value in preset.items() if field in read} | given


@cache
def _of_parts() -> frozenset[str]:
    """The generators that no other sampler has."""
    words = [set(sampler.words.get("generator", ())) for sampler in BUILT_IN if sampler.name != COMPOSED]
    own = built_in(COMPOSED)
    return frozenset(own.words["generator"] if own else ()) - set().union(*words)


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
        raise JobError(f"the job is {show(given)}, must be a JSON object", hint)
    return given


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field, value in pairs:
        if field in fields:
            raise JobError(f"job field {show(field)} is given twice", "keep one of them", field)
        fields[field] = value
    return fields


def _translate(error: ValidationError) -> JobError:
    """Pydantic's first error as a JobError."""
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    allowed = describe(field)
    if first["type"] == "missing":
        hint = f'add "{field}": ..., as a flag --{field.replace("_", "-")}'
        return JobError(f"job field {show(field)} is missing, must be {allowed}", hint, field)
    if first["type"] == "less_than_equal" and str(first["ctx"]["le"]) not in allowed:
        allowed = f"at most {first['ctx']['le']}, and {allowed}"
    value = first["input"]
    words = _choices().get(field, [])
    called = _CALLED.get(str(value).lower())
    hint = f"did you mean {show(called)}?" if called in words else nearest(value, words)
    return JobError(f"job field {show(field)} is {show(value)}, must be {allowed}", hint, field)


@cache
def _choices() -> dict[str, list[str]]:
    """The values of the fields that are a choice of words. To ask for the schema takes longer than to check a job."""
    fields = JobSpec.model_json_schema()["properties"]
    return {
        field: [word for option in said.get("anyOf", []) for word in option.get("enum", [])]
        for field, said in fields.items()
    }
