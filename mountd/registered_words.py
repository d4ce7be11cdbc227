"""What a user should know when a job was registered: who of the cluster does not follow it, or that nobody else can.

Pure. In: the job, what is known of the other nodes. Out: whole sentences. Called by mountd.control.
"""

from __future__ import annotations

from mlfs.engine.peering import PeeringStatistics
from mlfs.job import JobSpec

SILENT = "{nodes} not answer: what runs there does not follow this registration, and may read another order"
ALONE = (
    "this node alone serves the order of all {ranks} ranks; where other nodes run some of them, let all of them join"
    " first (mlfs peers), and register the job again"
)


def registered_words(spec: JobSpec, peers: PeeringStatistics) -> list[str]:
    """See the module."""
    words = []
    silent = sorted({*peers.lost, *peers.away})
    if silent:
        name = "node" if len(silent) == 1 else "nodes"
        does = "does" if len(silent) == 1 else "do"
        words.append(SILENT.format(nodes=f"{name} {', '.join(map(str, silent))} {does}"))
    if spec.serve is not None and spec.world_size > 1 and not peers.joined and len(spec.nodes or ()) == 1:
        words.append(ALONE.format(ranks=spec.world_size))
    return words
