"""Kill a process that fills a tier, in the middle of its changes, and look at what the next one finds.

Used by the tests of all tiers.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from pathlib import Path

from tier_contract import MIB, content, held, put

from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.ram import RamTier
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Tier, Version

KEYS = [b"dir/%d" % number for number in range(60)]
VERSIONS = [Version(100, 1), Version(5_000, 2), Version(60_000, 3)]


def open_tier(kind: str, directory: Path | str) -> Tier:
    """The directory of a RAM tier is its descriptors, which are not used up."""
    if kind == "ram":
        return RamTier(4 * MIB, [os.dup(int(fd)) for fd in str(directory).split()])
    return SsdTier(directory, 4 * MIB, "/src") if kind == "ssd" else LmdbTier(directory, 4 * MIB, "/src")


def write_forever(kind: str, directory: Path | str, seed: int, says: int) -> None:
    """Put and drop samples until this process is killed; each time it says so."""
    chance = random.Random(seed)
    tier = open_tier(kind, directory)
    os.write(says, b"ready\n")
    while True:
        key = chance.choice(KEYS)
        if chance.random() < 0.1:
            tier.drop(key)
        else:
            put(tier, key, chance.choice(VERSIONS))
        if chance.random() < 0.03 and isinstance(tier, LmdbTier):
            tier.flush()  # a commit every now and then, however slow or fast the disk
        os.write(says, b"\n")


def kill_and_look(kind: str, directory: Path | str, rounds: int) -> int:
    """Returns how many copies were found and guessed right over all rounds; none may be damaged."""
    found = 0
    chance = random.Random(4)
    for seed in range(rounds):
        hears, says = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=write_forever, args=(kind, directory, seed, says))
        child.start()
        os.close(says)
        with open(hears, "rb") as said:
            assert said.readline() == b"ready\n"
            for _ in range(chance.randrange(20, 250)):
                assert said.readline()
        child.kill()
        child.join()
        tier = open_tier(kind, directory)
        for key in held(tier, KEYS):
            found += _answers(tier, key, chance.choice(VERSIONS))
        assert tier.errors == 0
        assert tier.used_bytes <= tier.capacity_bytes
        tier.close()
    return found


def _answers(tier: Tier, key: bytes, guess: Version) -> bool:
    """Ask for a version: a right guess gives right bytes. A wrong one makes the tier drop the copy."""
    got = tier.get(key, guess)
    assert got is None or bytes(got) == content(key, guess)
    return got is not None
