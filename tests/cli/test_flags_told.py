"""The flags of `mlfs register` that a status or a log tells are taken by a shell as they stand, whatever is in them."""

from __future__ import annotations

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.cli.commands import build_parser
from mlfs.follow.sentences import told_flags
from mlfs.job import parse_job

NAMES = st.text("aé -*'\"$\\;&|<>()[]{}?!#~`\t=,.", min_size=1).filter(lambda name: name.strip("./") and name != "--")


@given(NAMES, NAMES, st.integers(-5, 5))
@settings(max_examples=25)
def test_they_give_the_job_that_was_told(root: str, pattern: str, seed: int) -> None:
    spec = parse_job({"epochs": 3, "layout": "tf-list-files", "root": root, "pattern": pattern, "seed": seed})
    words = ["register", "MOUNT", *shlex.split(told_flags(spec))]
    args = build_parser(words).parse(words)
    assert (args.root, args.pattern, int(args.seed), int(args.epochs)) == (spec.root, spec.pattern, spec.seed, 3)
