"""How many bytes an object holds, with all that can be reached from it: for tests that memory is bounded."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

# What is there once for all, or belongs to whoever calls.
_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, memoryview)


def held_bytes(root: Any) -> int:
    """The sum of the sizes of everything that `root` keeps alive, itself included."""
    seen: set[int] = set()
    to_see, held = [root], 0
    while to_see:
        thing = to_see.pop()
        if id(thing) not in seen and not isinstance(thing, _SHARED):
            seen.add(id(thing))
            held += sys.getsizeof(thing)
            to_see += gc.get_referents(thing)
    return held
