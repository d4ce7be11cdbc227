"""Kill a process that fills a tier, in the middle of its changes, and look at what the next one finds.

Used by the tests of all tiers.

Run as a program (`killing.py KIND DIRECTORY SEED`) it is that process: it puts and drops samples until it is killed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
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


def write_forever(kind: str, directory: str, seed: int) -> None:
    chance = random.Random(seed)
    tier = open_tier(kind, directory)
    print("ready", flush=True)
    while True:
        key = chance.choice(KEYS)
        if chance.random() < 0.1:
            tier.drop(key)
        else:
            put(tier, key, chance.choice(VERSIONS))
        if chance.random() < 0.03 and isinstance(tier, LmdbTier):
            tier.flush()  # a commit every now and then, however slow or fast the disk
        print(flush=True)


def kill_and_look(kind: str, directory: Path | str, rounds: int, fds: Sequence[int] = ()) -> int:
    """Returns how many copies were found and guessed right over all rounds; none may be damaged."""
    found = 0
    chance = random.Random(4)
    for seed in range(rounds):
        child = subprocess.Popen(
            [sys.executable, __file__, kind, str(directory), str(seed)], stdout=subprocess.PIPE, text=True, pass_fds=fds
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for _ in range(chance.randrange(20, 250)):
            assert child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
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


if __name__ == "__main__":
    write_forever(sys.argv[1], sys.argv[2], int(sys.argv[3]))
