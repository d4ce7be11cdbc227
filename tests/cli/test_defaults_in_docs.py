"""The defaults of a job's fields that docs/orders.md states are those that --help states, and those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlfs.cli.job_flags import NO_FLAGS, add_job_flags
from mlfs.cli.parser import Parser
from mlfs.job import JobSpec
from mlfs.orders.layouts.tf_list_files import PATTERN
from mlfs.orders.served import LEVEL

ORDERS = (Path(__file__).parents[2] / "docs/orders.md").read_text()
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", re.MULTILINE)
# The words of docs/orders.md, which has JSON's, beside those of --help.
SAID_BY_HELP = {"false": "no", "true": "yes", '""': "MOUNT itself", "the layout's": "the layout's own"}


def stated_in_docs() -> dict[str, str]:
    """By field, the default in the table of fields, in the words of --help."""
    table = ORDERS.partition("## Fields of a job")[2].partition("| others |")[0]
    found = {}
    for fields, default in ROW.findall(table):
        names = re.findall(r"`(\w+)`", fields)
        words = [word.strip().strip("`") for word in default.split(",")]
        for name, word in zip(names, words * len(names) if len(words) == 1 else words, strict=True):
            found[name] = SAID_BY_HELP.get(word, word.strip('"'))
    return found


def stated_in_help() -> dict[str, str]:
    """By field, the default that --help ends with."""
    parser = Parser()
    add_job_flags(parser)
    found = {}
    for action in parser.fields:
        if default := re.search(r"\(default: (.*)\)$", action.help or ""):
            found[action.dest] = default[1]
    return found


STATED = stated_in_docs()


def test_the_table_has_the_fields_that_every_job_may_have() -> None:
    some = {"level", "serve", "pattern", "batch_size", "start_step", "set_epoch"}
    assert some <= set(STATED) <= set(JobSpec.model_fields)


@pytest.mark.parametrize("field", sorted(set(STATED) - set(NO_FLAGS) - {"epochs"}))
def test_docs_and_help_state_the_same_default(field: str) -> None:
    assert stated_in_help()[field] == STATED[field]


def test_defaults_that_the_job_leaves_to_others_are_those_of_the_code() -> None:
    assert (STATED["level"], STATED["pattern"]) == (str(LEVEL), PATTERN)
    assert STATED["epochs"] == "required"
    assert JobSpec.model_fields["epochs"].is_required()
    assert STATED["version"] == str(JobSpec.model_fields["version"].default)
