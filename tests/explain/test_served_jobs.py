"""A job with a served order whose script does something else: it reads its sampler's own order, or was resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.explaining import explaining, order_of, simulate

from mlfs.follow.sentences import NOT_SERVED

NODES = [{"node": node, "ranks": str(node), "keeps_bytes": [1 << 30, 0], "buffer_bytes": 0} for node in (0, 1)]
OWN = {"seed": 5, "epochs": 30, "world_size": 2, "ranks": [0]}
SERVED = OWN | {"serve": "locality", "nodes": NODES}
SHUFFLED = SERVED | {"serve": "opportunistic"}


@pytest.mark.parametrize(
    ("registered", "script", "first", "words"),
    [
        (SERVED, OWN, 0, NOT_SERVED),
        (SHUFFLED, OWN, 0, NOT_SERVED),
        (SERVED, SERVED, 9, "it began with epoch 9, not 0"),
        (SHUFFLED, SHUFFLED, 9, "it began with epoch 9, not 0"),
    ],
)
def test_what_the_script_does_is_said_in_one_sentence_and_followed(
    tmp_path: Path, registered: dict[str, Any], script: dict[str, Any], first: int, words: str
) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, _):
            await jobs.register(**registered)
            for epoch in (first, first + 1):
                for entry in order_of(jobs.manifest, epoch, **script):
                    await jobs.read(entry, process=7)
            [job] = jobs.running.values()
            assert len(job.findings.known) == 1
            assert words in job.findings.known[0]
            assert job.score.agreement_of_last(40) == 1.0
            assert (job.spec.serve, job.spec.nodes is None) == (script.get("serve"), "serve" not in script)

    simulate(body)
