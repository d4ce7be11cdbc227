"""The console that commands print tables on.

Out: rich's console. Used by the commands that show tables; rich is imported when one is made, as it takes long.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mlfs.printable import printable_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

_PIPE_WIDTH = 120


class _Escaped:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for text, style, control in console.render(self._renderable, options):
            yield Segment(text if control else printable_lines(text), style, control)


def make_console() -> Console:
    """A console for tables: as wide as the terminal, or as a page when the output is no terminal."""
    from rich.console import Console, RenderHook

    class OnlyPrintable(RenderHook):
        """Printed text has names in it: they are shown escaped; rich's own control codes go on to the terminal."""

        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [_Escaped(renderable) for renderable in renderables]

    # A live display puts a stream of its own in front of standard output, and would find ours behind it, which escapes
    # what rich steers the terminal with.
    file = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    # Piped, rich would assume 80 columns and cut the tables.
    console = Console(markup=False, highlight=False, file=file, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.push_render_hook(OnlyPrintable())
    return console


# -- tables of numbers that can be read on any terminal
#
# In: columns, rows of cells. Out: something rich can print: a table, or where the terminal is too narrow for one, a
# line for each number.

# A table squeezed into less breaks its numbers in the middle, and leaves some out.
_NARROWEST = 60
_BETWEEN = 3  # columns


class NumberTable:
    """A table of numbers with a heading for each column.

    The first column has names and stands left, the others numbers, which stand right.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wanted = sum(max(map(len, column)) + _BETWEEN for column in zip(self._columns, *self._rows, strict=True))
        if wanted > options.max_width and options.max_width < _NARROWEST:
            yield from self._lines()
        else:
            yield from self._table()

    def _lines(self) -> RenderResult:
        from rich.text import Text

        for name, *cells in self._rows:
            yield Text(f"{self._columns[0]} {name}")
            for column, cell in zip(self._columns[1:], cells, strict=True):
                yield Text(f"  {column}: {cell}")

    def _table(self) -> RenderResult:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(self._columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in self._rows:
            table.add_row(*map(Text, row))  # Text: names with square brackets are no markup
        yield table
