"""What a user should know when a job was registered: who of the cluster does not follow it, or that nobody else can.

Pure. In: the job, what is known of the other nodes. Out: whole sentences. Called by mountd.control.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlfs.engine.peering import PeeringStatistics
from mlfs.job import JobSpec

SILENT = "{nodes} not answer: what runs there does not follow this registration, and may read another order"
LATE = "{nodes} not follow this registration yet: wait for `mlfs status` there, and look at its log if it takes long"
ANEW = (
    "the order rests on the nodes as they are now; a run that was begun on other ones goes on in another order: for the"
    " same one give the description that was saved (--json-file)"
)
ALONE = (
    "this node alone serves the order of all {ranks} ranks; where other nodes run some of them, let all of them join"
    " first (mlfs peers), and register the job again"
)


def registered_words(
    spec: JobSpec, peers: PeeringStatistics, late: Sequence[int] = (), nodes_anew: bool = False
) -> list[str]:
    """See the module.

    Args:
        late: nodes that answer, and had not planned with the job when it began here.
        nodes_anew: whether the nodes of a served order were filled in now, and are not those that its job had.
    """
    words = []
    silent = {*peers.lost, *peers.away}
    if silent:
        words.append(SILENT.format(nodes=_do(silent)))
    if not_yet := {*late} - silent:
        words.append(LATE.format(nodes=_do(not_yet)))
    if nodes_anew and (spec.start_epoch or spec.start_step):
        words.append(ANEW)
    if spec.serve is not None and spec.world_size > 1 and not peers.joined and len(spec.nodes or ()) == 1:
        words.append(ALONE.format(ranks=spec.world_size))
    return words


def _do(nodes: Collection[int]) -> str:
    """The subject of a sentence, and its verb."""
    names = ", ".join(map(str, sorted(nodes)))
    return f"node {names} does" if len(nodes) == 1 else f"nodes {names} do"
