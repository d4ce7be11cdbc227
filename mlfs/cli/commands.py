"""The `mlfs` command: finds the sub-command, runs it, and turns what goes wrong into one line and an exit code.

In: argv. Out: an exit code (docs/exit-codes.md). Called by `mlfs.cli.main`.
A sub-command's module has `add_flags(parser)`, which leaves `run(args) -> int` in the arguments. It is imported
only for its own command, and imports what is heavy inside of `run`, so that every help text is quick.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO, cast

import mlfs
from mlfs.cli.ending import EndedBySignal, ended_by
from mlfs.cli.parser import MOST_SHOWN, Parser
from mlfs.errors import ExitCode, MlfsError
from mlfs.printable import PrintableStream, printable
from mlfs.user_input import shortened

_DESCRIPTION = """\
Mount a directory of training files read-only, tell it the seed of the training job, and have each file in memory
just before the job reads it. The training script stays as it is.
"""

_EPILOG = """\
the whole way:
  mlfs mount /data/imagenet
  mlfs register /data/imagenet --sampler torch-distributed --seed 0 \\
      --epochs 90 --batch-size 64 --world-size 4 --ranks 0-3
  torchrun --nproc-per-node 4 train.py
  mlfs status /data/imagenet
  mlfs unmount /data/imagenet

mlfs COMMAND --help explains each command. Exit codes: docs/exit-codes.md.
"""

# In the order of the help: the module that adds the flags of a command (by `add_flags`, or as said), what it does.
_COMMANDS = {
    "mount": ("mlfs.cli.mount", "mount a data set, over its own path or elsewhere"),
    "register": ("mlfs.cli.register", "tell a mount the seed of a training job"),
    "order": ("mlfs.cli.order", "print the order in which a job will read the files of a directory"),
    "explain": ("mlfs.cli.explain", "say which orders begin as a script has printed its own"),
    "unregister": ("mlfs.cli.register:add_unregister_flags", "end a registered job"),
    "status": ("mlfs.cli.status", "show what a mount does, how far each rank is, where reads came from"),
    "warmup": ("mlfs.cli.warmup", "fill the caches before training reads"),
    "refresh": ("mlfs.cli.refresh", "have a mount show what has changed at its source"),
    "upgrade": ("mlfs.cli.upgrade", "have a mount go on with new code or other settings"),
    "ls": ("mlfs.cli.ls", "list the mlfs mounts of this machine"),
    "top": ("mlfs.cli.top", "watch a mount: who waits, where reads come from, what would help"),
    "report": ("mlfs.cli.report", "write a page that shows what a mount did, and what would help"),
    "audit": ("mlfs.cli.audit", "say whether a script reads what it should: repeated orders, lost samples"),
    "doctor": ("mlfs.cli.doctor", "check this machine: what is missing, what it costs, how to mend it"),
    "unmount": ("mlfs.cli.unmount", "end a mount; says who still uses it"),
    "run": ("mlfs.cli.run", "run a command that reads a silent mount without any request"),
    "peers": ("mlfs.cli.peers", "join this node's mount to the other nodes' (under MPI)"),
    "record": ("mlfs.cli.record", "keep what is opened on a mount, for mlfs replay"),
    "replay": ("mlfs.cli.replay", "have files fetched in a recorded order"),
    "cache": ("mlfs.cli.cache", "list, verify or clear what lies in a cache directory"),
    "plan": ("mlfs.lab.commands.plan", "predict a run: time of each epoch, stalls, PFS bytes, what to buy"),
    "simulate": ("mlfs.lab.commands.simulate", "compare policies on a simulated cluster"),
    "calibrate": ("mlfs.cli.calibrate", "measure how fast the source, disks and memory are"),
    "advise": ("mlfs.lab.commands.advise", "size a system: GPUs, parameter servers, mini-batch, workers"),
    "completion": ("mlfs.cli.completion", "print what a shell needs to complete the words of mlfs"),
}


class _Version(argparse.Action):
    """Prints the version. The commit is looked for only here, since that may run git."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, *_: object) -> NoReturn:
        from mlfs.commit import commit

        found = commit()
        print(f"mlfs {mlfs.__version__}" + (f" (commit {found})" if found else ""))
        raise SystemExit(int(ExitCode.OK))


def build_parser(argv: Sequence[str]) -> Parser:
    """The parser for this command line. A sub-command's module is imported only when its name is in it.

    The other sub-commands have a name and a line of help, and no parser: argparse would look 70 translations up,
    which takes longer than most commands.
    """

    def parser_of_command(prog: str) -> Parser | None:
        return Parser(prog=prog) if prog.removeprefix(parser.prog).strip() in argv else None

    parser = Parser(prog="mlfs", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action=_Version, help="print the version and the commit")
    parser.add_argument("--debug", action="store_true", help="on an error show the traceback as well (default: no)")
    made_by: Any = parser_of_command  # argparse calls it, and asks nothing more of it
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands", parser_class=made_by
    )
    for name, (where, summary) in _COMMANDS.items():
        own = commands.add_parser(name, help=summary)
        if own is not None:
            module, _, function = where.partition(":")
            getattr(importlib.import_module(module), function or "add_flags")(own)
    return parser


def build_full_parser() -> Parser:
    """The parser of all commands, which takes a moment to make."""
    return build_parser(list(_COMMANDS))


def main(argv: Sequence[str], begin: Callable[[], None] = lambda: None) -> int:
    """Run the command line and return the exit code; `begin` is called when the command does.

    Bad usage leaves through SystemExit(2).
    """
    if sys.stdout is None:  # `mlfs ... >&-`: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    before = sys.stdout, sys.stderr
    # Paths may hold anything, and a terminal obeys some of it.
    sys.stdout, sys.stderr = (cast(TextIO, PrintableStream(stream)) if stream else stream for stream in before)
    try:
        return _main(argv, begin)
    finally:
        sys.stdout, sys.stderr = before


def _main(argv: Sequence[str], begin: Callable[[], None]) -> int:
    debug = False
    try:
        args = build_parser(argv).parse(argv)
        debug = args.debug
        begin()
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # `mlfs status | head`: the reader has what it wanted.
        _drop_output()
        return ExitCode.OK
    except KeyboardInterrupt:
        return _complain("interrupted", ExitCode.INTERRUPTED, debug)
    except MlfsError as error:
        return _complain(str(error), error.exit_code, debug)
    except Exception as error:
        if ended := ended_by(error):
            raise EndedBySignal(ended) from None
        if _was_interrupted(error):
            return _complain("interrupted", ExitCode.INTERRUPTED, debug)
        return _unexpected(error, debug)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause. An import that is interrupted may raise another exception because of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _drop_output() -> None:
    """Discard what is in the buffer of standard output, or the interpreter would fail to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_homeless() -> bool:
    """Whether the working directory is gone, so that no relative path leads anywhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _unexpected(error: Exception, debug: bool) -> int:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        _drop_output()
        return _complain(f"the output cannot be written: {error.strerror}", ExitCode.FAILURE, debug)
    if isinstance(error, FileNotFoundError) and _is_homeless():
        said = "the working directory was deleted (cd to one that is there, or give absolute paths)"
        return _complain(said, ExitCode.USAGE, debug)
    hint = "" if debug else " (run it again as `mlfs --debug ...` for the traceback)"
    return _complain(f"unexpected {type(error).__name__}: {error}{hint}", ExitCode.FAILURE, debug)


def _complain(text: str, code: ExitCode, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    # A name with a newline in it must not make two lines of one error.
    print(f"mlfs: {printable(shortened(text, MOST_SHOWN))}", file=sys.stderr)
    return code
