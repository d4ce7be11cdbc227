"""Checks that all ranks of a run read one order: a rank with another one reads what others read, and leaves some out.

In: what a rank's order rests on, in words. Out: an error where another rank of the process group has said something
else of the same epoch. Called by `sampler`. Ranks leave their words in the store by which torch.distributed has made
the group, so nobody waits for anybody.
"""

from __future__ import annotations

from collections import Counter

import torch.distributed as dist
from torch.distributed import distributed_c10d

from mlfs.errors import JobError

# How many samplers the script has made of which it says the same, such as two for sets of one length.
_made: Counter[str] = Counter()


def named(said: str) -> str:
    """A name for a new sampler: the same on all ranks, as they run one script, and no other sampler's.

    Args:
        said: what all ranks say of it: not the path, which may differ from node to node.
    """
    _made[said] += 1
    return f"{said}/{_made[said]}"


def check_alike(sampler: str, epoch: int, order: str) -> None:
    """Raises where ranks of the process group read different orders.

    Without a process group nothing is known of other ranks.

    Args:
        sampler: its name, as of `named`. order: what the order rests on.

    Raises:
        JobError: another rank reads another order.
    """
    store = _store()
    if store is None:
        return
    try:
        said = store.compare_set(f"mlfs/{sampler}/{epoch}", "", order).decode()
    except (RuntimeError, NotImplementedError):  # a kind of store that cannot do this, or that is closed
        return
    if said != order:
        raise JobError(
            f"the ranks do not read one order in epoch {epoch}: this rank reads {order}, and another one {said}",
            "let all nodes join (mlfs peers), register the job once, and start the script again",
            "serve",
        )


def _store() -> distributed_c10d.Store | None:
    """The store of the default process group. torch has no public name for it: where it is not found, nothing is
    checked."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    get = getattr(distributed_c10d, "_get_default_store", None)
    store: distributed_c10d.Store | None = get() if get is not None else None
    return store
