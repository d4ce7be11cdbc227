"""What nodes say of a job to each other: one word between servers holds it, also with a thousand nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlfs.engine.shared_jobs import LONGEST_PACKED_BYTES, LONGEST_PLAIN_BYTES, job_of_message, message_of_job
from mlfs.errors import JobError
from mlfs.job import parse_job
from mlfs.peers.link import LARGEST_BYTES, PacketKind, pack_json


def job_of(nodes: int) -> dict[str, Any]:
    """A job of so many nodes."""
    rows = [
        {"node": node, "ranks": f"{8 * node}-{8 * node + 7}", "keeps_bytes": [10**12 + node, 10**13], "buffer_bytes": 9}
        for node in range(nodes)
    ]
    return {"name": "train", "epochs": 2, "batch_size": 8, "world_size": 8 * nodes, "serve": "locality", "nodes": rows}


@pytest.mark.parametrize("nodes", [1, 2000])
def test_a_job_comes_as_it_was_said_and_fits_into_a_packet(nodes: int) -> None:
    fields = job_of(nodes)
    message = message_of_job(fields)
    assert ("packed_job" in message) == (len(json.dumps(fields)) > LONGEST_PLAIN_BYTES)
    assert pack_json(PacketKind.TELL, message)
    assert job_of_message(json.loads(json.dumps(message))) == fields
    assert parse_job(fields | {"ranks": [0]}).nodes is not None


def test_a_job_that_no_packet_holds_is_refused_when_it_is_registered() -> None:
    with pytest.raises(JobError, match="too long to be told to other nodes"):
        message_of_job(job_of(8000))
    assert len(pack_json(PacketKind.TELL, {"packed_job": "x" * LONGEST_PACKED_BYTES})) <= LARGEST_BYTES


def test_what_is_no_job_is_refused() -> None:
    assert job_of_message({"ended": "train"}) is None
    with pytest.raises(ValueError, match="a job cannot be unpacked"):
        job_of_message({"packed_job": "00000"})
