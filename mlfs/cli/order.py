"""`mlfs order SOURCE ...`: print the order in which a training job will read the files of a directory, without a mount.

In: parsed arguments (the same flags as `mlfs register`), a directory. Out: paths relative to it on stdout, one a line
or, with --null, each ended by a NUL byte. Called by `mlfs.cli.commands`. A saved index of the directory is used if no
directory has changed since; otherwise it is scanned, and the index is saved for the next time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from mlfs.cli.job_flags import add_job_flags
from mlfs.cli.parser import whole
from mlfs.cli.register import add_origin_flags, job_fields
from mlfs.cli.tree import job_streams
from mlfs.errors import ExitCode, JobError, MlfsError
from mlfs.job import JobSpec, parse_job
from mlfs.orders.layouts.layout import NOTHING
from mlfs.printable import printable

if TYPE_CHECKING:
    from mlfs.tree.manifest import Manifest

OUTSIDE = b"(outside of the source)"
MOST = 2**63 - 1  # epochs, ranks and reads: those of a job are fewer, which the job says
_PORTION = 1 << 14  # paths that are written at once: a megabyte or two

_EPILOG = """\
examples:
  mlfs order /data/imagenet --seed 0 --world-size 8 --epoch 3 --rank 1 --head 20
  mlfs order /data/imagenet --preset lightning --world-size 8 | diff - read.txt
  mlfs order /data/imagenet --json-file job.json --null | xargs -0 -n 1 ls -l

A path is printed as the bytes that it consists of. One that holds a newline could not be told from two paths: it is an
error without --null. A sample behind a link that leads out of SOURCE has no path in it: "(outside of the source)"
stands in its place.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mlfs order [-h] SOURCE [--epoch N] [--rank N] ... [flags, see below]"
    parser.description = "Print the files that a training job will read, in order, a path relative to SOURCE a line."
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="SOURCE", help="the directory with the training files, or a mount of it")
    what = parser.add_argument_group("what is printed")
    count = whole(0, MOST)
    what.add_argument("--epoch", metavar="N", type=count, help="which epoch, counted from 0 (default: --start-epoch)")
    what.add_argument("--rank", metavar="N", type=count, help="whose reads (default: 0, or the first of --ranks)")
    what.add_argument("--head", metavar="N", type=count, help="the first N reads only (default: all)")
    text = "end each path with a NUL byte, not with a newline (default: no)"
    what.add_argument("-z", "--null", action="store_true", help=text)
    add_job_flags(parser)
    add_origin_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the order. Raises JobError for what is wrong with the job, SourceError when SOURCE cannot be read."""
    fields = job_fields(args, os.environ)
    epoch = fields.get("start_epoch", 0) if args.epoch is None else args.epoch
    if args.epoch is not None and isinstance(epoch, int):
        fields.setdefault("epochs", epoch + 1)
    fields.setdefault("epochs", 1)
    if args.rank is not None:
        fields.setdefault("ranks", [0])  # any of them will do; all ranks of a large world would be too many
    spec = parse_job(fields)
    rank = spec.ranks[0] if args.rank is None else args.rank
    for flag, value, most in (("--epoch", epoch, spec.epochs), ("--rank", rank, spec.world_size)):
        if value >= most:
            what = flag.removeprefix("--") + "s" * (most != 1)
            hint = f"they count from 0; or give {'--epochs' if flag == '--epoch' else '--world-size'}"
            raise JobError(f"{flag} is {value}, must be 0 to {most - 1}: the job has {most} {what}", hint, flag)
    _print(_paths(args.source, spec, epoch, rank, args.head), args.null)
    return ExitCode.OK


def _paths(source: str, spec: JobSpec, epoch: int, rank: int, head: int | None) -> Iterator[bytes]:
    with job_streams(source, spec) as (streams, manifest):
        ids = streams.epoch_ids(epoch, rank)
    start = spec.start_step * streams.batch_files if epoch == spec.start_epoch else 0
    wanted = ids[start:] if head is None else ids[start : start + head]
    return (_name(manifest, entry) for entry in wanted.tolist() if entry != NOTHING)


def _name(manifest: Manifest, sample: int) -> bytes:
    """The path of a file; of a row that of its file, its offset and its length, as the layout "ranges" has them."""
    if sample < len(manifest):
        return manifest.path(sample) if sample >= 0 else OUTSIDE
    rows = manifest.rows
    return b"%b\t%d\t%d" % (manifest.path(rows.file_of(sample)), rows.offset_of(sample), rows.sizes[sample])


def _print(paths: Iterable[bytes], null: bool) -> None:
    end = b"\0" if null else b"\n"
    if sys.stdout.isatty():  # programs get the names as they are, a terminal what it can show
        paths = (printable(os.fsdecode(path)).encode() for path in paths)
    out = sys.stdout.buffer
    portions = iter(paths)
    while portion := list(islice(portions, _PORTION)):
        for path in portion:
            if not null and b"\n" in path:
                shown = os.fsdecode(path)
                raise MlfsError(f"the path {shown!r} holds a newline and cannot be printed on one line", "give --null")
        out.write(b"".join(path + end for path in portion))
    out.flush()
