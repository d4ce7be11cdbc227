"""Decides which registration of a job counts where several nodes were told a job of one name: the same on all of them.

Pure. In: jobs that are registered or ended on this node, and what other nodes tell of theirs. Out: numbers to tell with
them, and what is to be done with what was heard. Used by `mlfs.engine.shared_jobs`.

Each registration has a number, which is one more than the largest number that its node has heard of. So of two
registrations the later one counts. Two nodes that register at the same moment have not heard of each other, and both
registrations may get the same number: then that of the lower node counts. All nodes hear of all registrations in the
end, in whatever order, and so agree on the one that counts. The end of a job names the registration that it ends, so
it does not end a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

Fields = Mapping[str, Any]


class Registration(NamedTuple):
    """A job was registered somewhere.

    Attributes:
        number: of two the one with the higher number counts, then the one of the lower node. by: the node where it was.
    """

    number: int
    by: int

    def counts_before(self, other: Registration | None) -> bool:
        return other is None or (self.number, -self.by) > (other.number, -other.by)


class Heard(Enum):
    """The way to go on with a registration that another node tells."""

    NEW = "follow it, in place of what counted before"
    AGAIN = "it is the job that counts already, registered once more: take part in planning it anew"
    NOTHING = "another one counts, or all plan it already"


class _Last(NamedTuple):
    registration: Registration
    fields: Fields | None  # None: it was ended


class Registrations:
    """The registrations that this node has made or heard of.

    Jobs are known by name, and a job is what its fields say.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def names(self) -> list[str]:
        """The jobs that go on."""
        return [name for name, last in self._last.items() if last.fields is not None]

    def last(self, name: str) -> Registration | None:
        """The registration that counts, also of a job that was ended; None for an unknown job."""
        last = self._last.get(name)
        return last.registration if last is not None else None

    def fields(self, name: str) -> Fields | None:
        """The fields of the job that counts under that name; None for none."""
        last = self._last.get(name)
        return last.fields if last is not None else None

    def forget(self) -> None:
        """Go on alone."""
        self._last.clear()

    def had_before(self, name: str, fields: Fields, own: int) -> Registration:
        """Note a job that this node had when it joined the others."""
        return self._count(name, Registration(0, own), fields)

    def make(self, name: str, fields: Fields, own: int) -> Registration:
        """The job is registered on this node now."""
        last = self.last(name)
        return self._count(name, Registration(1 if last is None else last.number + 1, own), fields)

    def hear(self, name: str, registration: Registration, fields: Fields) -> Heard:
        """Take in a registration that another node tells."""
        last = self._last.get(name)
        if last is not None and not registration.counts_before(last.registration):
            return Heard.NOTHING
        self._count(name, registration, fields)
        if last is None or last.fields != fields:
            return Heard.NEW
        # Registered on several nodes at the same moment, it is planned once.
        return Heard.AGAIN if registration.number > last.registration.number else Heard.NOTHING

    def end(self, name: str) -> Registration | None:
        """The job is ended on this node. Returns which registration is; None: there is none that goes on."""
        if self.fields(name) is None:
            return None
        registration = self._last[name].registration
        self._last[name] = _Last(registration, None)
        return registration

    def hear_end(self, name: str, registration: Registration) -> bool:
        """Take in that another node has ended a registration. Returns whether the job ends here."""
        last = self._last.get(name)
        if last is not None and last.registration.counts_before(registration):
            return False
        self._last[name] = _Last(registration, None)
        return last is not None and last.fields is not None

    def _count(self, name: str, registration: Registration, fields: Fields) -> Registration:
        self._last[name] = _Last(registration, fields)
        return registration
