"""An argument parser whose errors are one line, with the word that was probably meant.

In: argv. Out: a namespace, or one line on standard error and exit code 2. Made by `mlfs.cli.commands`; argparse makes
the parsers of sub-commands of the same class.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mlfs.errors import ExitCode
from mlfs.printable import printable
from mlfs.user_input import InputError, nearest, shortened, whole_number

# An error quotes what was given, which may be of any length: more than this is no line for people.
MOST_SHOWN = 1000


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of a flag that takes a whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            return whole_number(text, least, most)
        except InputError as error:
            raise argparse.ArgumentTypeError(f"is {shortened(text)!r}, must be {error}") from None

    return read


class _Help(argparse.HelpFormatter):
    """Fills descriptions to the terminal's width, leaves their indented lines (examples) as they are, cuts no name."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        paragraph: list[str] = []
        for line in [*text.splitlines(), ""]:
            if line and not line.startswith(" "):
                paragraph.append(line)
                continue
            lines += textwrap.wrap(" ".join(paragraph), width, break_on_hyphens=False)
            lines.append(line)
            paragraph = []
        return "\n".join(lines).rstrip()


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flags, because a flag that is added later would change what an abbreviation means."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        defaults: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False}
        super().__init__(*args, **(defaults | kwargs))

    def error(self, message: str) -> NoReturn:
        """One line, with the way to the help, and exit code 2."""
        hint = f"{self.prog} --help says more"
        message = message.replace("argument ", "", 1).replace(": is ", " is ", 1)
        flag, _, what = message.partition(": ")
        if what == "expected one argument":
            message, hint = f"{flag} needs a value", f"{hint}; a value that begins with - is written {flag}=VALUE"
        self._leave(message, hint)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a word that is none of the action's choices, with the one that was probably meant."""
        if action.choices is not None and value not in action.choices:
            names = [str(name) for name in action.choices]
            said = f"{argparse.ArgumentError(action, '').argument_name} is {value!r}, must be one of {', '.join(names)}"
            self._leave(said, nearest(str(value), names) or f"{self.prog} --help says more")

    @property
    def fields(self) -> list[argparse.Action]:
        """Flags and words that this command takes; its sub-commands are in `commands`."""
        return [action for action in self._actions if not isinstance(action, argparse._SubParsersAction)]

    @property
    def commands(self) -> dict[str, Parser]:
        """The parsers of the sub-commands that have been made, by name."""
        below = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return {name: parser for action in below for name, parser in action.choices.items() if parser is not None}

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """As `parse_args`; the error about an unknown flag names the nearest flag of the same command.

        All behind the first `--` is `command_words` of a command that runs another one. argparse would take it for that
        only where no flag stands between the other words and `--`.
        """
        behind: list[str] = []
        if "--" in argv and any(action.dest == "command_words" for action in self._innermost(argv).fields):
            at = list(argv).index("--")
            argv, behind = argv[:at], list(argv[at + 1 :])
        parsed, unknown = self.parse_known_args(argv)
        if behind:
            parsed.command_words = behind
        if unknown:
            self._refuse_unknown(unknown, argv)
        return parsed

    def _refuse_unknown(self, unknown: list[str], argv: Sequence[str]) -> NoReturn:
        parser = self._innermost(argv)
        word = next((word for word in unknown if word.startswith("-")), unknown[0])
        flag = word.partition("=")[0]
        if not flag.startswith("-"):
            parser._leave(f"{flag!r} is one word too many", f"{parser.prog} --help says more")
        known = [option for action in parser.fields for option in action.option_strings]
        parser._leave(f"there is no flag {flag}", nearest(flag, known) or f"{parser.prog} --help lists them")

    def _innermost(self, argv: Sequence[str]) -> Parser:
        """The parser of the sub-command that the words name."""
        parser: Parser = self
        for word in argv:
            parser = parser.commands.get(word, parser)
        return parser

    def _leave(self, message: str, hint: str) -> NoReturn:
        line = " ".join(f"{self.prog}: {shortened(message, MOST_SHOWN)} ({shortened(hint, MOST_SHOWN)})".split())
        print(printable(line), file=sys.stderr)
        raise SystemExit(int(ExitCode.USAGE))
