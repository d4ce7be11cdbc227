"""`mlfs explain SOURCE FILE ...`: say which orders begin as a script has printed its own, without a mount.

In: parsed arguments (the flags of `mlfs register`: what is given is known, the rest is tried), a directory, a file with
a path or a dataset index a line. Out: the flags that register each order that fits. Called by `mlfs.cli.commands`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from array import array
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlfs.cli.job_flags import add_job_flags
from mlfs.cli.parser import whole
from mlfs.cli.progress import Progress
from mlfs.cli.register import add_origin_flags, job_fields
from mlfs.cli.tree import job_streams
from mlfs.errors import ConfigError, ExitCode, JobError, MlfsError
from mlfs.job import JobSpec, check_values, parse_job
from mlfs.job.spec import DATA_FIELDS
from mlfs.user_input import read_lines, shortened

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlfs.explain.fields import Fields
    from mlfs.orders.streams import JobStreams
    from mlfs.tree.manifest import Manifest

MOST_LINES = 1 << 26
_MOST_PARTS = 4  # of a data set, each of which takes a search of its own
_MOST_DIGITS = 18  # of a number that no data set reaches
_EPILOG = """\
examples:
  mlfs explain /data/imagenet read.txt
  mlfs explain /data/imagenet read.txt --generator numpy --seed 2027
  mlfs explain /data/imagenet - --world-size 4 --rank 1 < read.txt

FILE has what one rank reads, in its order: a path (absolute, or relative to SOURCE or --root) or a dataset index a
line, from the first epoch on. An empty line begins the next epoch; without one, what follows a pass is the next one.
Ten reads tell an epoch; a second epoch tells how the generator is seeded. What a flag says is taken for known,
everything else is tried, with the seeds that people choose. Without --root the data set is the directory that has all
the class directories that FILE names; for indices SOURCE itself, and then each directory in it.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mlfs explain [-h] SOURCE FILE [--rank N] [--json] [flags, see below]"
    parser.description = "Say which orders begin as a script has printed its own: the flags that register each."
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="SOURCE", help="the directory with the training files, or a mount of it")
    parser.add_argument("file", metavar="FILE", help="a path or dataset index a line; - for standard input")
    parser.add_argument("--rank", metavar="N", type=whole(0, 2**63 - 1), default=0, help="whose reads (default: 0)")
    parser.add_argument("--json", action="store_true", help="print a list of jobs, as JSON (default: no)")
    add_job_flags(parser)
    add_origin_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what fits. Raises ConfigError for what FILE has, JobError for flags that no job can have."""
    from mlfs.explain.compositions import FEWEST_READS, explaining

    known = job_fields(args, os.environ)
    check_values(known)
    world = parse_job({"epochs": 1, **{name: known[name] for name in ("world_size",) if name in known}}).world_size
    if args.rank >= world:
        hint = "they count from 0; or give --world-size"
        raise JobError(f"--rank is {args.rank}, must be 0 to {world - 1}: the job has {world} ranks", hint, "--rank")
    of_data = {name: known[name] for name in DATA_FIELDS if name in known}
    how_long = {name: known.pop(name) for name in ("epochs",) if name in known}  # the reads say nothing of it
    fields: dict[str, Any] = {"sampler": "sequential", "epochs": 1, "ranks": [0]} | of_data
    with job_streams(args.source, parse_job(fields)) as (streams, manifest):
        epochs, are_paths = _epochs(args.file, args.source, streams, manifest)
        root = _common_directory(epochs, streams, manifest) if are_paths and "root" not in known else ""
        others = [] if are_paths or "root" in known else _parts(manifest)
    if not epochs or len(epochs[0]) < FEWEST_READS:
        count = len(epochs[0]) if epochs else 0
        raise MlfsError(f"{args.file} has {count} reads, which many orders give", f"give at least {FEWEST_READS}")
    data_sets = [(epochs, len(streams.sample_ids), known)]
    if root:
        # Others of its directories are read by nobody here: a script trains with `train` beside `val`. Or they have few
        # samples, and the first reads are of none of these: so the whole is tried as well.
        with suppress(JobError), job_streams(args.source, parse_job(fields | {"root": root})) as (below, manifest):
            if moved := _moved(epochs, streams, below, len(manifest)):
                data_sets.insert(0, (moved, len(below.sample_ids), known | {"root": root}))
    for part in others:  # a script trains with `train` beside `val`, and its indices do not say so
        with suppress(JobError), job_streams(args.source, parse_job(fields | {"root": part})) as (below, _):
            if max(map(max, epochs)) < len(below.sample_ids):
                data_sets.append((epochs, len(below.sample_ids), known | {"root": part}))
    found, tried = list["Fields"](), 0
    with Progress() as progress:
        for epochs, n, known in data_sets:
            before = tried
            for trial in explaining(epochs, n, known, args.rank):
                found, tried = found + trial.found, before + trial.number
                progress.update({"phase": f"trying orders: {tried:,} of {before + trial.of:,}"})
            if found:
                break
    unsaid = {"name", "epochs", "dealing"} if world == 1 else {"name", "epochs"}
    said = ({name: value for name, value in job.items() if name in known or name not in unsaid} for job in found)
    jobs = [job | how_long for job in said]
    if args.json:
        print(json.dumps(jobs))
    elif jobs:
        _say(jobs, epochs)
    if not found:
        hint = "give what is known, such as --generator, --seed or --root; or record a run: mlfs record"
        raise MlfsError(f"none of {tried:,} orders that were tried begins as {args.file} does", hint)
    return ExitCode.OK


def _say(jobs: list[Fields], epochs: list[array[int]]) -> None:
    from mlfs.follow.sentences import flags_of
    from mlfs.job.parse import COMPOSED

    reads = sum(map(len, epochs))
    what = f"{reads:,} reads of {len(epochs)} epoch{'s' if len(epochs) > 1 else ''}"
    print(f"{len(jobs)} order{'s' if len(jobs) > 1 else ''} fit{'' if len(jobs) > 1 else 's'} the {what}:")
    for job in jobs:
        shown = {name: job[name] for name in JobSpec.model_fields if job.get(name, COMPOSED) != COMPOSED}
        print(f"  mlfs register MOUNT {flags_of(shown)}{'' if 'epochs' in job else ' --epochs N'}")
    if len(jobs) > 1 and len(epochs) < 2:
        print("a second epoch, after an empty line, tells which of them it is", file=sys.stderr)


def _entries(streams: JobStreams) -> npt.NDArray[Any]:
    """The entry of each dataset index: that of a sample's first file."""
    return streams.sample_ids.reshape(len(streams.sample_ids), -1)[:, 0]


def _indices(streams: JobStreams, n_entries: int) -> npt.NDArray[Any]:
    """The dataset index of each entry, -1 for what is no sample."""
    import numpy as np

    entries, indices = _entries(streams), np.full(n_entries, -1, dtype=np.int64)
    indices[entries[entries >= 0]] = np.flatnonzero(entries >= 0)
    return indices


def _common_directory(epochs: list[array[int]], streams: JobStreams, manifest: Manifest) -> str:
    """The directory that has all class directories of which files are read; "" is the source itself."""
    import numpy as np

    entries = _entries(streams)[np.unique(np.concatenate(epochs))] if epochs else np.empty(0, dtype=np.int64)
    classes = manifest.paths(np.unique(manifest.parent[entries[entries >= 0]]))
    above = {os.path.dirname(path) for path in classes}
    return os.fsdecode(os.path.commonpath(above)) if above else ""


def _parts(manifest: Manifest) -> list[str]:
    """The directories right below the source that have directories themselves, as `train` beside `val` has; a few."""
    has_some = (top for top in manifest.children(0) if any(map(manifest.is_dir, manifest.children(top)[:64])))
    return [os.fsdecode(manifest.path(top)) for top in islice(has_some, _MOST_PARTS)]


def _moved(epochs: list[array[int]], streams: JobStreams, below: JobStreams, n_entries: int) -> list[array[int]]:
    """The same reads as indices of a part of the data set; none if that is all of it, or has not all of the reads."""
    if len(below.sample_ids) == len(streams.sample_ids):
        return []
    entries, indices = _entries(streams), _indices(below, n_entries)
    moved = [array("q", indices[entries[epoch]].tolist()) for epoch in epochs]
    return moved if all(min(epoch) >= 0 for epoch in moved) else []


def _epochs(path: str, source: str, streams: JobStreams, manifest: Manifest) -> tuple[list[array[int]], bool]:
    """The dataset indices that the file has, by epoch; and whether all of its lines are paths."""
    n, index_of = len(streams.sample_ids), _indices(streams, len(manifest.mode))
    are_paths = True
    top = os.fsencode(os.path.abspath(source)) + b"/"
    root = os.fsencode(streams.spec.root)
    epochs = [array("q")]
    try:
        with open(path, "rb") if path != "-" else open(os.dup(0), "rb") as file:
            for number, line in enumerate(read_lines(file, MOST_LINES), 1):
                said = line.rstrip(b"\r\n")
                if not said:
                    epochs.append(array("q"))
                    continue
                are_paths = are_paths and not said.isdigit()
                index = _index(said, top, root, index_of, manifest)
                if not 0 <= index < n:
                    shown = shortened(repr(os.fsdecode(said)))
                    hint = f"paths below {source}, or indices below {n}; is --root or --layout another?"
                    raise ConfigError(f"{path}, line {number}: {shown} is no sample of the data set", hint)
                epochs[-1].append(index)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}", "give a readable file, or - for standard input"
        ) from None
    return [epoch for epoch in epochs if epoch], are_paths


def _index(said: bytes, top: bytes, root: bytes, index_of: npt.NDArray[Any], manifest: Manifest) -> int:
    """The dataset index that a line says; -1 for none."""
    if said.isdigit():
        return int(said[:_MOST_DIGITS])
    # Without the top a path is relative to --root, or to the source, as `mlfs order` prints it.
    for relative in [said[len(top) :]] if said.startswith(top) else [b"/".join(filter(None, (root, said))), said]:
        entry = manifest.find(os.path.normpath(relative))
        if entry >= 0 and index_of[entry] >= 0:
            return int(index_of[entry])
    return -1
