"""The worth of a read, and how much evidence decides: the bars for hypotheses, and for families of readers.

Pure. In: nothing. Out: a read, the bits that reads are worth, and the bars. Hypotheses (`mlfs.follow.hypothesis`) and
families of readers (`mlfs.follow.families`) are judged by these and by nothing else; the numbers by which a job is
believed again, drifts, or was resumed stand in `job`, `score` and `findings`. The bars were found by measuring, on
drawn jobs and on real scripts: each says what goes wrong below it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

UNTIMED = -1.0
"""Stands for the time of a read of which nobody knows when it came."""


class Read(NamedTuple):
    """A read of one of the job's samples."""

    sample: int
    process: int
    parent: int
    at_s: float


MISS_BITS = 4.0
"""What a read costs that comes otherwise than a rival predicts: until a loader's shape is known, about one in
sixteen is in doubt."""


def bits(agreed: float, observed: float, choices: int) -> float:
    """The evidence of reads for a rival. Args: choices: samples that each of them might have been of."""
    return agreed * math.log2(max(2, choices)) - (observed - agreed) * MISS_BITS


LEAST_BITS = 20.0
"""The bits of a hypothesis that is none by chance: more often than once in a million nobody would forgive a wrong
order."""

# -- a hypothesis has proved itself

SURE_SHARE = 0.8
"""Share of the reads that must come as predicted: of twelve two may be strays."""
SURE_STREAK = 8
"""Predicted reads in a row, of one process, that are too many for chance, even in data sets of a few samples."""
PROVED_READS = 32
"""Reads, where nobody reads eight in a row: a loader of many workers, and short epochs; and of a script that was
started again, as each worker's first reads may be in doubt. Thirty-two are several batches, in which chance agrees now
and then, and not in most."""
JUDGED_OPENS = 12
"""Reads that a hypothesis was not found by, where it was searched for: two or three batches of a worker, or less, which
is soon enough to matter."""
MOST_FURTHER_OPENS = 96
"""What is neither confirmed nor refuted by so many of these is dropped: eight times as many as are enough."""


def fits(opens: int, fitting: int) -> bool:
    """Whether nearly all reads came as a hypothesis says."""
    return fitting >= SURE_SHARE * opens


# -- the script was started again

LOST_READS = 8
"""Reads none of which was predicted, before another run is looked for though reads are matched: one worker's or two
batches' worth. A single one that was predicted says that the run under way still reads."""
FEWEST_READ_BEFORE = 8
"""Reads of another run, among the first 32, that must be of samples that were read before: by chance one or two are, in
an order that repeats its samples; where fewer are, the first run had hardly begun, and the reads are still its own."""

# -- before anybody has proved to read for the job

FITTING_READS, FITTING_SHARE = 6, 0.5
"""Reads of a family, and the share of them that is predicted, from which on it is no stranger: the first reads of each
worker may be in doubt, and chance makes far fewer."""
ONLY_READER_READS = 512
"""Reads of a family that has not proved itself after which it is seen anew, from where the job begins."""
LOOK_BACK_AFTER = 64
"""Reads after the first process has proved to read for the job, until families that read before it and don't fit count
as strangers: so long the other ranks may take to prove themselves."""

# -- once somebody has proved to read for the job

STRANGER_READS = 16
"""Reads that fit nothing before a family is a stranger: two batches of eight; a reader of the job proves itself with
eight."""
TRIAL_READS = 64
"""Reads after which a trial begins anew where the ranks are by then. Another run of the script, which is known by its
first 32 reads, shows in one trial."""
EARLIER_READS = 512
"""Reads of a family from before its trial that are kept: some batches of each worker, which may prove to be the job's
with those of the trial. Where ranks have samples in common, it takes several trials to tell whose reads are whose."""
HEIR_READS, HEIR_SILENCE_S = 32, 2.0
"""Reads of a family, and seconds, through which nobody else reads the job, before the family is taken for the job's
readers of today though it does not read as predicted: a script that was started again in another way."""
ASTRAY_READS = 16
"""Reads of a process that is kin of the job's readers and reads something else while they read as predicted, before it
is a stranger all the same: another script of the same shell."""

# -- a registered job's reads call for another hypothesis

JUDGED_SAMPLES = 12
"""Samples of a rank's epoch below which no other registration is looked for: so few have so few orders that many
registrations explain any reads."""
UNFIT_READS = 16
"""Reads that disagree before it is looked for: two batches of eight. Fewer cannot tell one of some hundred from
chance."""
SEARCHED_READS, SEARCHED_SHARE = 24, 0.75
"""The last reads, and the share of them below which a search is worth its time: a lost batch is no reason."""
HIT_WORTH = 0.4
"""What a predicted read weighs against one that was not, where the disagreement is seen to begin: in a wrong order some
are predicted by chance."""
READS_BEFORE = 4
"""Predicted reads before a disagreement below which they are chance: the script has just begun, in another order."""
READS_AGAIN = 8
"""Reads of a second run before it is believed that there is one, and no other registration is looked for."""
JUMPS = 2
"""Jumps of workers over each other's batches that show workers, and no `cp -r`: one may be a file that is missing."""
