"""`mlfs completion bash|zsh|fish`: prints what the shell needs to complete the words of `mlfs`.

In: the parsers of all commands. Out: a script for the shell, made by shtab, on stdout. Called by `mlfs.cli.commands`.
Flags and commands are the parsers' own; of a value, the word that stands for it in the help says what it is.
"""

from __future__ import annotations

import argparse
from typing import Any

from mlfs.errors import ExitCode

_EPILOG = """\
examples:
  mlfs completion bash > /etc/bash_completion.d/mlfs
  mlfs completion zsh > /usr/local/share/zsh/site-functions/_mlfs
  mlfs completion fish > ~/.config/fish/completions/mlfs.fish
  eval "$(mlfs completion bash)"      in this shell alone
"""
# The words of the help that stand for directories and files. MOUNT is one of the mounts.
_DIRECTORIES = ("SOURCE", "MOUNTPOINT", "DIR", "DIR:SIZE", "PATH")
_FILES = ("FILE", "OUT", "OUT.png", "RECORD", "SCENARIO", "MODEL.toml")
# Those that show the whole of their file system: not the mounts through which commands go.
_MOUNTS = "findmnt --raw --noheadings --output FSROOT,TARGET --types fuse.mlfs | sed -n s,^/[[:space:]],,p"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a script that has the shell complete commands, flags, mounts, files and names of samplers."
    )
    parser.epilog = _EPILOG
    parser.add_argument("shell", metavar="SHELL", choices=["bash", "zsh", "fish"], help="bash, zsh or fish")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script that completes the words of mlfs in a shell."""
    import shtab

    from mlfs.cli.commands import build_full_parser
    from mlfs.job.names import layout_names, sampler_names
    from mlfs.job.presets import PRESETS

    names = {"--sampler": sampler_names(), "--layout": layout_names(), "--preset": list(PRESETS)}
    parser = build_full_parser()
    _describe_values(parser, names, shtab)
    print(shtab.complete(parser, args.shell))
    return ExitCode.OK


def _describe_values(parser: argparse.ArgumentParser, names: dict[str, list[str]], shtab: Any) -> None:
    """Leave in each action what its value is, where shtab looks for it."""
    for action in parser._actions:
        metavar = str(action.metavar)
        named = next((names[flag] for flag in action.option_strings if flag in names), None)
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _describe_values(below, names, shtab)
        elif named or "|" in metavar:
            action.choices = named or metavar.split("|")
        elif metavar == "MOUNT":
            action.complete = shtab.cmd(_MOUNTS)  # type: ignore[attr-defined]
        elif metavar in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
