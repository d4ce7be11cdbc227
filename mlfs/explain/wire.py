"""The search's questions and answers as JSON, between the daemon and the process that searches.

In and out: plain objects. Called by `mlfs.explain.seed_search` on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlfs.explain.confirm import Finding
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import Recipe
from mlfs.explain.search_stages import (
    Draw,
    Event,
    GeneratorsFound,
    PlaceFound,
    SearchExtent,
    SeedFound,
    StageProgress,
    WordsAsked,
)


def question(data_sets: Sequence[DataSet], extent: SearchExtent) -> str:
    """What is asked, as one line."""
    return json.dumps({"data_sets": [[d.n, d.heads] for d in data_sets], "extent": extent._asdict()})


def parse_question(line: str) -> tuple[list[DataSet], SearchExtent]:
    """The data sets and the extent that `question` wrote down."""
    asked: dict[str, Any] = json.loads(line)
    sets = [DataSet(n, tuple(tuple(head) for head in heads)) for n, heads in asked["data_sets"]]
    extent = asked["extent"]
    ranges = tuple((low, high) for low, high in extent["ranges"])
    extent |= {"ranges": ranges, "told": tuple(extent["told"]), "words": _words(extent["words"])}
    return sets, SearchExtent(**extent)


def _words(asked: list[Any] | None) -> WordsAsked | None:
    if asked is None:
        return None
    seed, seeded, ahead, spans, weights_file = asked
    return WordsAsked(seed, seeded, ahead, tuple((low, high) for low, high in spans), weights_file)


def answer(event: Event) -> str:
    """An event, as one line."""
    if isinstance(event, StageProgress):
        return json.dumps({"progress": list(event)})
    if isinstance(event, Recipe):
        return json.dumps({"recipe": list(event)})
    if isinstance(event, PlaceFound):
        return json.dumps({"place": event.words})
    if isinstance(event, SeedFound):
        return json.dumps({"found": list(event.finding), "draws": event.draws})
    return json.dumps({"draws": event.draws})


def parse_answer(line: str) -> Event:
    """The event that `answer` wrote down."""
    said: dict[str, Any] = json.loads(line)
    if "progress" in said:
        return StageProgress(*said["progress"])
    if "recipe" in said:
        return Recipe(*said["recipe"])
    if "place" in said:
        return PlaceFound(said["place"])
    if "found" in said:
        fields = dict(zip(Finding._fields, said["found"], strict=True))
        return SeedFound(Finding(**fields | {"ranks": tuple(fields["ranks"])}), _draws(said))
    return GeneratorsFound(_draws(said))


def _draws(said: dict[str, Any]) -> tuple[Draw, ...]:
    return tuple(Draw(*draw) for draw in said["draws"])
