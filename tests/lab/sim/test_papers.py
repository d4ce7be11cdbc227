"""What papers have measured of orders themselves, from orders drawn here: docs/decisions/papers-measured.md."""

from __future__ import annotations

import numpy as np
import pytest

NODES, STEPS, SAMPLES, EPOCHS = 8, 625, 20_000, 40


def test_most_samples_are_read_again_by_a_node_after_more_than_a_thousand_iterations() -> None:
    """Lobster, Section 3, Observation 4 and Figure 4: 80 %, with 8 nodes of 8 GPUs and batches of 32 of ImageNet-1K."""
    generator = np.random.default_rng(0)
    last = np.full(SAMPLES, -1.0)
    distances = []
    for epoch in range(EPOCHS):
        place = generator.permutation(SAMPLES)
        mine = place % NODES == 0
        at = (epoch + place / SAMPLES) * STEPS
        again = mine & (last >= 0)
        distances.append((at - last)[again])
        last[mine] = at[mine]
    assert float((np.concatenate(distances) > 1000).mean()) == pytest.approx(0.8, abs=0.05)
