"""All policies by name, in the order in which tables show them. Pure. Called by the simulator and its command."""

from __future__ import annotations

from mlfs.plan.policies import (
    clairvoyant,
    deepio,
    lbann,
    lobster,
    locality_aware,
    naive,
    nopfs,
    parallel_staging,
    perfect,
    staging_pool,
)
from mlfs.plan.policies.contract import Policy

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        perfect.POLICY,
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
        staging_pool.POLICY,
        naive.POLICY,
    )
}
