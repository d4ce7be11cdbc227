"""Facts that never change while a mount lives. Made by the daemon when it starts; part of the frozen figures of a
mount."""

from __future__ import annotations

from dataclasses import dataclass

from mountd.life_note import Died


@dataclass(frozen=True, slots=True)
class About:
    """Facts that never change while a mount lives.

    Attributes:
        how: how its list of files was made. started: when, in seconds since 1970.
        unreadable: how many directories the scan could not read. first_unreadable: the path of the first of them.
        unreadable_errno: what listing that one failed with.
        died: the daemon that served the mount point before, if it died.
        links: what is to be said of links that lead out of the source.
    """

    source: str
    mountpoint: str
    how: str
    started: float
    unreadable: int = 0
    first_unreadable: str = ""
    unreadable_errno: int = 0
    died: Died | None = None
    links: str = ""
