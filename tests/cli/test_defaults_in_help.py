"""The defaults of a job's fields that --help states are those of the code."""

from __future__ import annotations

import re

import pytest

from mlfs.cli.job_flags import NO_FLAGS, add_job_flags
from mlfs.cli.parser import Parser
from mlfs.job import JobSpec
from mlfs.orders.layouts import PATTERN
from mlfs.orders.served import LEVEL

# Defaults that the help states in words of its own.
IN_WORDS = {"root": "MOUNT itself"}
SAID_BY_HELP = {"False": "no", "True": "yes"}


def stated_in_help() -> dict[str, str]:
    """By field, the default that --help ends with."""
    parser = Parser()
    add_job_flags(parser)
    found = {}
    for action in parser.fields:
        if default := re.search(r"\(default: (.*)\)$", action.help or ""):
            found[action.dest] = default[1]
    return found


STATED = stated_in_help()


def test_each_field_that_may_be_left_out_has_its_default_in_the_help() -> None:
    assert set(STATED) == set(JobSpec.model_fields) - set(NO_FLAGS) - {"epochs"}
    assert JobSpec.model_fields["epochs"].is_required()


@pytest.mark.parametrize("field", [name for name in sorted(STATED) if JobSpec.model_fields[name].default is not None])
def test_the_help_states_the_default_of_the_job(field: str) -> None:
    default = str(JobSpec.model_fields[field].default)
    assert STATED[field] == IN_WORDS.get(field, SAID_BY_HELP.get(default, default))


def test_defaults_that_the_job_leaves_to_others_are_those_of_the_code() -> None:
    assert (STATED["level"], STATED["pattern"]) == (str(LEVEL), PATTERN)
