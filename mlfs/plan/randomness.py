"""The randomisation level of an order that is shuffled in rounds within memory (DeepIO 2018, III-C, equations 1 to 5).

Pure. In: the sizes of the data set and of the memory. Out: a share of what a full shuffle has. Called by `mlfs plan`.
"""

from __future__ import annotations

import math

import numpy as np


def randomization_level(elements: int, memory_ratio: float, files: int | None = None) -> float:
    """RL = H / H_fully for an order drawn from rounds of memory instead of from the whole data set.

    Args:
        elements: N_images, samples an epoch.
        memory_ratio: share of the data set that the shuffling memory holds, above 0 and at most 1.
        files: N_f, files that the elements come in; each element its own file if not given.

    Returns:
        RL; 1.0 for a full shuffle.

    Eq. 4: with r = i div N_mem the round of element i, P(i) = N_c / (N_f - N_c r) / (N_mem - i mod N_mem) and
    Q(i) = 1 / (N_images - i). The published levels come out with H = -sum Q log2 P and H_fully = -sum Q log2 Q; eq.
    1 as printed, H = -sum P log2 Q, does not give them (docs/model.md).

    Raises:
        ValueError: no elements, or a ratio out of range.
    """
    if elements < 1 or not 0 < memory_ratio <= 1:
        raise ValueError(
            f"{elements} elements at ratio {memory_ratio}: at least one, and a ratio in (0, 1], are needed"
        )
    n_files = elements if files is None else files
    in_memory = max(1, math.ceil(elements * memory_ratio))
    files_in_memory = n_files * in_memory / elements
    index = np.arange(elements, dtype=np.float64)
    rounds = np.floor(index / in_memory)
    chosen = np.minimum(1.0, files_in_memory / (n_files - files_in_memory * rounds))
    left = np.minimum(in_memory, elements - rounds * in_memory)
    log_p = np.log2(chosen) - np.log2(np.maximum(left - index % in_memory, 1.0))
    q = 1.0 / (elements - index)
    fully = -float((q * np.log2(q)).sum())
    return -float((q * log_p).sum()) / fully if fully else 1.0
