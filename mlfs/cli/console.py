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
