"""Finding the seed that nobody told: from the first reads of each process to the job that explains them.

Pure: numpy, and numba where it is installed; no I/O, no clock. `question` says what was read, `probes` what a seed must
give, `search` tries seeds, `confirm` checks what was found against all that was read, `explain` says which jobs it may
be. Called by `mlfs.explain.seed_search`, in a process of its own, and by `mlfs.explain.inference`.
"""
