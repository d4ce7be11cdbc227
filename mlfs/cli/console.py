"""The console that commands print tables on.

Out: rich's console. Used by the commands that show tables; rich is imported when one is made, as it takes long.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 120


def make_console() -> Console:
    """A console for tables: as wide as the terminal, or as a page when the output is no terminal."""
    from rich.console import Console

    # Piped, rich would assume 80 columns and cut the tables.
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
