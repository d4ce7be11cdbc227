"""The seeds that people choose, the most popular first: the one list of them.

In: nothing. Out: numbers. Whoever tries seeds takes as many from the front as it can afford.

The order is that of a common sense of what stands in scripts: 42, the numbers that tutorials and frameworks pass to
`manual_seed`, years; then keyboard patterns and repeated digits.
"""

from __future__ import annotations

POPULAR_SEEDS = (
    42, 0, 1, 1234, 123, 2, 3, 1337,
    12345, 7, 10, 100, 2023, 2024, 2025, 2026,
    3407, 1000, 2022, 2021, 2020,
    2019, 2018, 43, 99, 111, 222, 256, 314, 333, 420, 456, 512, 555, 666, 777, 888, 999, 1024, 1111, 4321, 5678,
    31415, 54321, 123456, 654321, 1234567, 12345678, 123456789,
    4, 5, 6, 8, 9, 11, 12, 13, 17, 21, 31,
)  # fmt: skip

# The seed of an epoch is often the job's seed plus the epoch's number. A number up to this one is as likely to be an
# epoch of a run with seed 0 as a seed of its own.
LARGEST_SMALL_SEED = 31

# How many are tried by each way of searching. Looking through what a generator hands out takes tenths of a second a
# seed for the first eight, which are looked through furthest, and less for the others.
FURTHEST_LOOKED_THROUGH = 8
LOOKED_THROUGH = 21
# A sampler that is not torch's has a whole epoch's order made for each seed: milliseconds to a second.
WHOLE_ORDERS = 16
