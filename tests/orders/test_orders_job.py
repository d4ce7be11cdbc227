"""A job's JSON: what is taken, what is refused, and that each refusal is one line with a remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.errors import ExitCode, JobError
from mlfs.follow.sentences import flags_of
from mlfs.job import COMMON, MAX_EPOCHS, MAX_LOCAL_RANKS, MAX_WORLD_SIZE, JobSpec, job_schema, parse_job
from mlfs.job.catalogue import BUILT_IN, Sampler
from mlfs.job.presets import PRESETS
from mlfs.job.resume import words_of_resume


def refusal(text: Any) -> JobError:
    with pytest.raises(JobError) as caught:
        parse_job(text)
    assert caught.value.exit_code == ExitCode.BAD_JOB
    assert str(caught.value).isprintable()  # so: one line, and no surrogates
    return caught.value


def test_the_defaults() -> None:
    spec = parse_job('{"epochs": 3}')
    assert spec.understood() == {
        "version": 1,
        "name": "train",
        "root": "",
        "layout": "imagefolder",
        "sampler": "torch-distributed",
        "seed": 0,
        "epochs": 3,
        "batch_size": 1,
        "world_size": 1,
        "ranks": [0],
        "shuffle": True,
        "drop_last": False,
        "start_epoch": 0,
        "start_step": 0,
        "set_epoch": True,
        "loader_drop_last": False,
    }
    unread = set(JobSpec.model_fields) - spec.understood().keys()
    assert all(value is None for field, value in spec.model_dump().items() if field in unread)


def test_text_bytes_and_objects_are_one() -> None:
    fields = {"epochs": 2, "seed": -5, "ranks": [1, 0], "world_size": 2}
    text = json.dumps(fields)
    assert parse_job(text) == parse_job(text.encode()) == parse_job(fields)
    assert parse_job({**fields, "ranks": (1, 0)}).ranks == (1, 0)


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse_job({"epochs": 1}).seed = 3


WRONG: list[tuple[str, Any, str]] = [
    ("name", "a b", "1 to 64 letters"),
    ("name", "", "1 to 64 letters"),
    ("name", "x" * 65, "1 to 64 letters"),
    ("name", "a\n", "1 to 64 letters"),
    ("name", "..", 'other than "." and ".."'),
    ("name", 5, "1 to 64 letters"),
    ("root", "/data", "relative"),
    ("root", "a/../b", "relative"),
    ("root", "a\0b", "relative"),
    ("root", "\ud800", "relative"),
    ("root", None, "relative"),
    ("layout", "imagefolders", "one of imagefolder, "),
    ("layout", [], '"imagefolder"'),
    ("extensions", [], "a list of file name endings"),
    ("extensions", "jpg", "a list of file name endings"),
    ("extensions", [1], "a list of file name endings"),
    ("extensions", ["."], "a list of file name endings"),
    ("extensions", ["a/b"], "a list of file name endings"),
    ("sampler", "torch_distributed", "one of torch-distributed, "),
    ("sampler", 1, "the name of a sampler"),
    ("seed", "5", "a whole number"),
    ("seed", 1.5, "a whole number"),
    ("seed", True, "a whole number"),
    ("seed", None, "a whole number"),
    ("epochs", 0, "1 to 1000000"),
    ("epochs", "3", "1 to 1000000"),
    ("epochs", MAX_EPOCHS + 1, "1 to 1000000"),
    ("batch_size", 0, "1 or more"),
    ("batch_size", 2.0, "1 or more"),
    ("world_size", 0, f"1 to {MAX_WORLD_SIZE}"),
    ("world_size", MAX_WORLD_SIZE + 1, f"1 to {MAX_WORLD_SIZE}"),
    ("ranks", [4], "different ranks from 0 to 3 (the world has 4)"),
    ("ranks", [-1], "different ranks from 0 to 3"),
    ("ranks", [0, 0], "different ranks from 0 to 3"),
    ("ranks", [True], "different ranks from 0 to 3"),
    ("ranks", [0.0], "different ranks from 0 to 3"),
    ("ranks", [], "different ranks from 0 to 3"),
    ("ranks", "", "different ranks from 0 to 3"),
    ("ranks", "3-1", "different ranks from 0 to 3"),
    ("ranks", "0-999999999", "different ranks from 0 to 3"),
    ("ranks", "0-3," * 5 + "0", "different ranks from 0 to 3"),
    ("ranks", "0,x", "different ranks from 0 to 3"),
    ("ranks", {"0": 1}, "different ranks from 0 to 3"),
    ("shuffle", 1, "true or false"),
    ("shuffle", "yes", "true or false"),
    ("drop_last", 0, "true or false"),
    ("start_epoch", -1, "0 or more"),
    ("start_epoch", 9, "less than epochs, which is 9"),
    ("start_step", -1, "0 or more"),
    ("repeats", 1e300, "1 to 1000"),
    ("order_file", "order.txt", "absolute path"),
    ("order_file", "/tmp/", "absolute path"),
    ("order_file", 3, "absolute path"),
    ("order_file", "/tmp/{epochs}", "{epoch} and {rank}"),
    ("order_file", "/tmp/x", 'left out: the sampler "torch-distributed" does not read it'),
]


@pytest.mark.parametrize(("field", "value", "allowed"), WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    error = refusal({"epochs": 9, "world_size": 4, field: value})
    assert error.field == field
    assert f'job field "{field}" is ' in error.message
    assert allowed in error.message
    shown = json.dumps(value) if not isinstance(value, str) else repr(value)[1:-1]
    assert shown[:70] in error.message


@pytest.mark.parametrize(
    ("fields", "field", "nearest"),
    [
        ({"epoch": 3}, "epoch", "epochs"),
        ({"epochs": 3, "Seed": 1}, "Seed", "seed"),
        ({"epochs": 3, "worldsize": 1}, "worldsize", "world_size"),
        ({"epochs": 3, "sampler": "TorchDistributed"}, "sampler", "torch-distributed"),
        ({"epochs": 3, "sampler": "sequental"}, "sampler", "sequential"),
        ({"epochs": 3, "layout": "image-folder"}, "layout", "imagefolder"),
        ({"epochs": 3, "sampler": "explicit", "order_file": "/x/{ranks}"}, "order_file", "{rank}"),
    ],
)
def test_the_nearest_right_word_is_suggested(fields: dict[str, Any], field: str, nearest: str) -> None:
    error = refusal(fields)
    assert error.field == field
    assert error.hint == f'did you mean "{nearest}"?'


@pytest.mark.parametrize("written", ["torchvison", "torchvision", "Torch-vision"])
def test_a_library_without_the_rest_of_a_preset_suggests_all_of_its_presets(written: str) -> None:
    error = refusal({"epochs": 3, "preset": written})
    assert error.hint == 'did you mean "torchvision-reference", "torchvision-detection" or "torchvision-clips"?'


def test_an_unknown_field_like_no_other_lists_the_known_ones() -> None:
    error = refusal({"epochs": 3, "zzzzzz": 1})
    assert error.field == "zzzzzz"
    assert all(field in error.hint for field in JobSpec.model_fields)


def test_missing_fields() -> None:
    error = refusal({})
    assert (error.field, error.hint) == ("epochs", 'add "epochs": ..., as a flag --epochs')
    assert "is missing" in error.message
    for sampler, field in (("explicit", "order_file"), ("torch-stateful", "num_workers")):
        error = refusal({"epochs": 1, "sampler": sampler})
        assert error.field == field
        assert "is missing" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '"epochs"',
        "[" * 100_000,
        b"\xff",
        b"\0",
        '{"epochs": 1} x',
        '{"epochs": 1' + "0" * 5000 + "}",
    ],
)
def test_what_is_no_json_object_is_refused(text: str | bytes) -> None:
    error = refusal(text)
    assert error.field == ""
    assert "JSON" in error.message
    assert error.hint


def test_objects_that_json_cannot_say_are_refused() -> None:
    assert "not JSON" in refusal({"epochs": 1, "root": Path("x")}).message


def test_a_field_given_twice_is_refused() -> None:
    assert refusal('{"epochs": 1, "epochs": 2}').field == "epochs"


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        (None, (0, 1, 2, 3, 4, 5, 6)),
        ("0-3,6", (0, 1, 2, 3, 6)),
        (" 5 , 0 - 1 ", (5, 0, 1)),
        (2, (2,)),
        ("2", (2,)),
        (["0-1", 4], (0, 1, 4)),
        ([6, 0], (6, 0)),
    ],
)
def test_ranks_can_be_written_in_several_ways(given: Any, ranks: tuple[int, ...]) -> None:
    assert parse_job({"epochs": 1, "world_size": 7, "ranks": given}).ranks == ranks


@pytest.mark.parametrize(("root", "kept"), [("a/", "a"), ("./a//b/.", "a/b"), (".", ""), ("a..b", "a..b")])
def test_a_root_is_kept_in_one_form(root: str, kept: str) -> None:
    assert parse_job({"epochs": 1, "root": root}).root == kept


def test_extensions_are_kept_lower_case_without_a_dot_and_once() -> None:
    assert parse_job({"epochs": 1, "extensions": [".JPG", "jpg", "tar.GZ"]}).extensions == ("jpg", "tar.gz")


@given(
    fields=st.fixed_dictionaries(
        {"epochs": st.integers(1, MAX_EPOCHS), "world_size": st.just(8)},
        optional={
            "seed": st.integers(),
            "batch_size": st.integers(1, 1 << 40),
            "ranks": st.lists(st.integers(0, 7), min_size=1, unique=True),
            "shuffle": st.booleans(),
            "drop_last": st.booleans(),
            "start_step": st.integers(0, 1 << 40),
            "root": st.sampled_from(["", "train", "é", "\udcff/x", "quote\"'\n"]),
            "extensions": st.sampled_from([None, ["jpg"], ["é"], ["\udcff"]]),
            "name": st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
        },
    )
)
@settings(max_examples=cases(50), deadline=None)
def test_a_job_survives_its_own_json(fields: dict[str, Any]) -> None:
    spec = parse_job(fields)
    text = spec.to_json()
    assert "\n" not in text
    assert parse_job(text) == spec
    assert all(getattr(spec, field) == value for field, value in fields.items() if field in ("seed", "epochs", "root"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(fields=st.dictionaries(st.sampled_from(sorted(JobSpec.model_fields)), JSON, max_size=4))
@example(fields={"world_size": 1025})
@settings(max_examples=cases(80), deadline=None)
def test_anything_is_a_job_or_a_job_error(fields: dict[str, Any]) -> None:
    try:
        spec = parse_job({"epochs": 1, **fields})
    except JobError as refused:
        error = refused
    else:
        assert parse_job(spec.to_json()) == spec
        return
    assert str(error).isprintable()
    # Ranks are missing, too, where the world has more of them than one mount may have.
    assert error.field in fields or "is missing" in error.message or "is null, must be given" in error.message


def test_the_schema_documents_every_field() -> None:
    schema = job_schema()
    assert set(schema["properties"]) == {*JobSpec.model_fields, "resume"}
    assert all(described.get("description") for described in schema["properties"].values())
    assert schema["required"] == ["epochs"]
    assert schema["additionalProperties"] is False
    assert schema["x-version"] == 1
    assert set(schema["x-common"]) == COMMON


@pytest.mark.parametrize("sampler", BUILT_IN, ids=lambda sampler: sampler.name)
def test_every_field_that_a_sampler_names_is_one(sampler: Sampler) -> None:
    assert sampler.fields <= JobSpec.model_fields.keys() - COMMON
    assert sampler.required <= sampler.fields | COMMON
    assert sampler.defaults.keys() <= sampler.fields | COMMON


def test_a_field_that_the_sampler_does_not_read_is_refused_with_those_that_do() -> None:
    error = refusal({"epochs": 1, "sampler": "sequential", "seed": 7})
    assert error.field == "seed"
    assert error.message == 'job field "seed" is 7, must be left out: the sampler "sequential" does not read it'
    assert "torch-distributed" in error.hint
    assert parse_job({"epochs": 1, "sampler": "sequential", "order_file": None}).order_file is None


def test_a_node_has_at_most_so_many_ranks_and_a_big_world_must_name_them() -> None:
    most = MAX_LOCAL_RANKS
    assert len(parse_job({"epochs": 1, "world_size": most}).ranks) == most
    assert len(parse_job({"epochs": 1, "world_size": 9999, "ranks": f"5-{most + 4}"}).ranks) == most
    error = refusal({"epochs": 1, "world_size": most + 1})
    assert (error.field, "--from-env" in error.hint) == ("ranks", True)
    assert refusal({"epochs": 1, "world_size": 9999, "ranks": f"0-{most}"}).field == "ranks"
    assert refusal({"epochs": 1, "world_size": 9999, "ranks": list(range(most + 1))}).field == "ranks"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_in_what_is_not_given(preset: str) -> None:
    spec = parse_job({"epochs": 1, "preset": preset, "batch_size": 3})
    assert spec.batch_size == 3
    assert all(getattr(spec, field) == value for field, value in PRESETS[preset].items() if field != "batch_size")
    assert parse_job({"epochs": 1, "preset": preset, "sampler": "sequential"}).sampler == "sequential"


@pytest.mark.parametrize("preset", PRESETS)
def test_the_table_of_presets_says_what_each_sets(preset: str) -> None:
    page = (Path(__file__).parents[2] / "docs/orders.md").read_text()
    table = page.partition("## Presets")[2].partition("\n## ")[0]
    fields = {name: value for name, value in PRESETS[preset].items() if (name, value) != ("sampler", "composed")}
    (row,) = [line for line in table.splitlines() if line.startswith(f"| `{preset}` | ")]
    assert f"| `{flags_of(fields)}` |" in row
    proofs = re.findall(r"test_\w+\.py", row)
    assert proofs
    assert all((Path(__file__).parent / proof).exists() for proof in proofs)


def test_a_last_batch_can_be_dropped_only_of_batches_of_known_size() -> None:
    assert parse_job({"epochs": 1, "loader_drop_last": True, "batch_size": 1}).loader_drop_last
    assert parse_job({"epochs": 1, "preset": "timm"}).loader_drop_last
    error = refusal({"epochs": 1, "loader_drop_last": True})
    assert (error.field, error.hint) == ("loader_drop_last", 'add "batch_size"')


STATEFUL: dict[str, Any] = {  # as torchdata 0.11 writes them, behind 20 samples of a rank
    "_num_yielded": 4, "_sampler_iter_yielded": 4, "dataset_state": {"yielded": 3}, "_iterator_finished": False,
    "_sampler_iter_state": {"samples_yielded": 20, "sampler_state": {"yielded": 20}},
}  # fmt: skip
WITH_WORKERS = {
    "_steps_since_snapshot": 0, "_iterator_finished": False,
    "_snapshot": {
        "_snapshot_step": 4, "_worker_snapshots": {"worker_0": {"dataset_state": {"epoch": 7, "index": 3}}},
        "_main_snapshot": {"_num_workers": 2, "_sampler_iter_state": None, "_sampler_iter_yielded": 4},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("resume", "begins"),
    [
        (1, (1, 0)),
        ("1", (1, 0)),
        ("1:60", (1, 6)),
        ("1:69", (1, 6)),
        ({"epoch": 1, "index": 30, "num_replicas": 4}, (1, 12)),  # of a run with four ranks
        ({"epoch": 1, "yielded": 20}, (1, 4)),
        ({"epoch": 1, "saved": {"loader": STATEFUL}}, (1, 4)),
        ({"epoch": 1, "loader": WITH_WORKERS}, (1, 4)),
    ],
)
def test_where_a_run_goes_on_is_said_by_what_a_sampler_saves(resume: Any, begins: tuple[int, int]) -> None:
    spec = parse_job({"epochs": 3, "batch_size": 5, "world_size": 2, "resume": resume})
    assert (spec.start_epoch, spec.start_step) == begins
    assert words_of_resume(resume, spec) == (
        ["69 samples are 6 steps of 10 and 9 samples: the job is expected to go on behind the last whole step"]
        if resume == "1:69"
        else []
    )


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"resume": "1:x"}, "resume", "must be an epoch, an epoch and the samples"),
        ({"resume": True}, "resume", "must be an epoch, an epoch and the samples"),
        ({"resume": {"epoch": 1, "model": [1, 2]}}, "resume", "must be an epoch, an epoch and the samples"),
        ({"resume": STATEFUL}, "resume", "must be a state with its epoch"),
        ({"resume": {"epoch": True, "index": 2}}, "resume", "must be a state with its epoch"),
        ({"resume": 1, "start_step": 3}, "resume", "must be given without start_step"),
        ({"resume": 1, "start_epoch": 1}, "resume", "must be given without start_epoch"),
        ({"resume": 3}, "start_epoch", "must be less than epochs"),
    ],
)
def test_a_place_to_go_on_that_cannot_be_used_is_named(fields: dict[str, Any], field: str, says: str) -> None:
    refused = refusal({"epochs": 3} | fields)
    assert refused.field == field
    assert says in str(refused)
    told = parse_job({"epochs": 3, "resume": STATEFUL, "start_epoch": 1, "batch_size": 4})
    assert (told.start_epoch, told.start_step) == (1, 5)
