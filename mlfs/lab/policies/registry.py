"""All policies by name, in the order in which tables show them. Pure. Called by `mlfs simulate`.

`lower_bound` is another name of `perfect`, as the tables of NoPFS's authors call it.
"""

from __future__ import annotations

from dataclasses import replace

from mlfs.lab.policies import (
    clairvoyant,
    deepio,
    lbann,
    lobster,
    locality_aware,
    naive,
    nopfs,
    parallel_staging,
)
from mlfs.lab.policies.policy import Policy

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        naive.PERFECT,
        clairvoyant.POLICY,
        nopfs.POLICY,
        lobster.POLICY,
        lbann.DYNAMIC,
        lbann.PRELOAD,
        locality_aware.POLICY,
        deepio.ORDERED,
        deepio.OPPORTUNISTIC,
        deepio.HYBRID,
        parallel_staging.POLICY,
        naive.STAGING_POOL,
        naive.POLICY,
    )
}

OTHER_NAMES = {"lower_bound": "perfect"}


def named(name: str) -> Policy | None:
    """The policy of that name, under the name that was asked for; hyphens count as underscores."""
    known = name.replace("-", "_")
    policy = POLICIES.get(OTHER_NAMES.get(known, known))
    return replace(policy, name=name) if policy else None
