"""Contents that READs had a moment ago: several READs of one sample come together, or one behind the other.

In: samples' bytes, on the loop. Out: the same, while there is room. Those that were asked for longest ago go first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from mlfs.engine.pagecache import Buffer
from mlfs.plan.place_kind import PlaceKind


class HotContent(NamedTuple):
    """The bytes of a sample, of which generation of its file, and the place that they came from."""

    generation: int
    data: Buffer
    kind: PlaceKind


class HotContents:
    """Contents of samples, at most so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held: OrderedDict[int, HotContent] = OrderedDict()
        self.bytes = 0

    def get(self, sample: int, generation: int) -> HotContent | None:
        """The sample's content, if it is there in this generation."""
        held = self._held.get(sample)
        if held is None or held.generation != generation:
            return None
        self._held.move_to_end(sample)
        return held

    def add(self, sample: int, content: HotContent) -> None:
        """Keep a content for a moment, in place of an older one of the sample."""
        old = self._held.pop(sample, None)
        self.bytes += len(content.data) - (len(old.data) if old is not None else 0)
        self._held[sample] = content
        while self.bytes > self.most_bytes:
            _, oldest = self._held.popitem(last=False)
            self.bytes -= len(oldest.data)
