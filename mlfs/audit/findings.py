"""The rules of the auditor: which faults a script's reads show.

Pure. In: the reads of a mount. Out: numbers of each epoch, findings, and what cannot be judged. Each rule is a function
of one loader, or of two runs in a row. A rule says nothing where the reads could come from a script that means what it
does: evaluations go through the listing in its order, and ranks may each evaluate all of it; draws with replacement and
repeated augmentation repeat samples; an epoch may end early. docs/audit.md says what each rule cannot see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from mlfs.audit.epochs import COMPLETE, LoaderReads, RankReads, loaders
from mlfs.audit.orders import (
    FEWEST,
    FEWEST_ALIKE,
    MOST_COMPARED,
    Stream,
    are_alike,
    differ,
    distinct,
    firsts,
    is_hardly_shuffled,
    is_listing,
    shuffled_by,
    without_repeats,
)
from mlfs.audit.reads import SeenReads
from mlfs.audit.report import Audit, EpochAudit, JobAudit, Kind, ScriptFault

SHARED_BY_WORKERS = 0.9
"""Share of a worker's samples that another one of its rank reads at about the same time, where both read everything."""
FEWEST_OF_A_WORKER = 32
"""Samples by which a worker is judged: several batches."""
SIDE_BY_SIDE = 0.1
"""Share of their time that such workers are apart, at most. What two draw at random is a third of it apart."""
OVERLAP = 0.05
"""Share of an epoch's samples that several ranks read, above which it is no padding."""
SAME_STEP = 3
"""Reads apart that the copies of a repeated augmentation lie in their ranks."""
SAME_TIME = 0.25
"""Share of the shortest part of an epoch in which all ranks read it, at least: short ones are soon over."""
MISSING = 0.02
"""Share of the samples of all other epochs that one epoch may leave out: dropped ends differ each time."""
UNEQUAL = 0.05
"""Share by which one rank may read more than another: padding and single batches."""
PARTIAL = 0.95
"""An epoch of less than that share of a whole one is the part that was left of it."""
READ_AHEAD = 0.1
"""Share of an epoch that workers have read and the script has not used when a run ends: it is read once more."""
GOES_ON, ANEW = 1 + MISSING / 2, 0.3
"""Parts of an epoch that ended early which the next one must have, so that it is seen whether it is begun anew; and by
how much larger the share of that epoch's samples is then, of all that comes first."""
BEGUN, FEWEST_BEGUN = 0.1, 2 * FEWEST
"""Share of an epoch, and samples of it, from which its order is compared while it goes on."""
FAR_FROM_CHANCE = 0.5
"""Share of the samples that a part of another shuffle would have read again, or left out, below which two runs read one
order."""
FEWEST_BY_CHANCE = 8
"""Samples below which such a share says nothing: half of so many is not rare."""
SKIPPED = 0.05
"""Share of an epoch that a resumed run may leave out: a dropped end, and what was used last."""


def audit(reads: SeenReads) -> Audit:
    """Judge the reads of a mount."""
    jobs: list[JobAudit] = []
    findings: list[ScriptFault] = []
    found = loaders(reads)
    for loader in found:
        jobs.append(_job(loader))
        alike = list(_workers_alike(loader))
        findings += alike
        if not alike and not _evaluates(loader, found):
            findings += _of_orders(loader)
            findings += _of_samples(loader)
    for before, after in _resumed(found):
        findings += _of_resume(before, after)
    return Audit(tuple(jobs), tuple(_once(findings)), reads.forgotten, reads.unknown)


def _once(findings: list[ScriptFault]) -> Iterator[ScriptFault]:
    """The first finding of each kind of a run, as other ranks have the same fault. All epochs alike are no replay."""
    said: set[tuple[int, Kind]] = {(one.run, Kind.REPLAYED) for one in findings if one.kind is Kind.SAME_ORDER}
    for one in findings:
        if (one.run, one.kind) not in said:
            said.add((one.run, one.kind))
            yield one


# -- numbers


def _job(loader: LoaderReads) -> JobAudit:
    readers = distinct(loader.stream.readers)
    samples = distinct(loader.stream.samples)
    epochs = tuple(_epochs(loader, samples)) if loader.shows_epochs else ()
    unjudged = []
    if not loader.shows_epochs:
        unjudged.append("samples come again at any time, so the reads do not show where an epoch ends")
    elif len(samples) < FEWEST_ALIKE:
        unjudged.append(f"fewer than {FEWEST_ALIKE} samples say nothing of an order")
    elif len(epochs) < 2:
        unjudged.append("one epoch alone does not show whether the next one has another order")
    return JobAudit(loader.run, len(loader.ranks), len(readers), len(samples), epochs, tuple(unjudged))


def _epochs(loader: LoaderReads, samples: NDArray[np.int32]) -> Iterator[EpochAudit]:
    for epoch in range(max(len(rank.epochs) for rank in loader.ranks)):
        of_ranks = [rank.epochs[epoch] for rank in loader.ranks if epoch < len(rank.epochs)]
        counts = _ranks_by_sample(of_ranks, samples)
        complete = all(epoch < len(rank.whole) for rank in loader.ranks)
        reads = [len(part.at) for part in of_ranks]
        by_none, by_one = int((counts == 0).sum()), int((counts == 1).sum())
        by_several = len(samples) - by_none - by_one
        shuffled = round(sum(map(shuffled_by, of_ranks)) / len(of_ranks), 3)
        yield EpochAudit(
            epoch, sum(reads), by_none, by_one, by_several, shuffled, min(reads), max(reads), complete
        )  # fmt: skip


def _ranks_by_sample(of_ranks: list[Stream], samples: NDArray[np.int32]) -> NDArray[np.int64]:
    """By sample, how many ranks read it."""
    counts = np.zeros(len(samples), np.int64)
    for part in of_ranks:
        counts[np.searchsorted(samples, distinct(part.samples))] += 1
    return counts


# -- orders


def _evaluates(loader: LoaderReads, others: list[LoaderReads]) -> bool:
    """Whether another loader of the run reads more samples, and meanwhile: then this one is an evaluation."""
    own = loader.stream.at
    samples = len(distinct(loader.stream.samples))
    return any(
        other.run == loader.run
        and other is not loader
        and len(distinct(other.stream.samples)) > samples
        and other.stream.at[0] < own[-1]
        and own[0] < other.stream.at[-1]
        for other in others
    )


def _workers_alike(loader: LoaderReads) -> Iterator[ScriptFault]:
    for rank in loader.ranks:
        for epoch, whole in enumerate(rank.epochs):
            stream = whole.where(slice(0, MOST_COMPARED))
            by_reader = [stream.where(stream.readers == reader) for reader in distinct(stream.readers).tolist()]
            for one, other in combinations(map(without_repeats, by_reader), 2):
                shared = _read_by_both(one, other)
                if shared:
                    sentence = (
                        f"workers of rank {rank.rank} read the same {shared:,} samples in epoch {epoch}: each goes"
                        " through the whole data set"
                    )
                    mend = (
                        "in the IterableDataset's __iter__: take items[info.id::info.num_workers] of"
                        " torch.utils.data.get_worker_info()"
                    )
                    yield ScriptFault(Kind.WORKERS_ALIKE, loader.run, epoch, shared, sentence, mend)
                    return


def _read_by_both(one: Stream, other: Stream) -> int:
    """How many samples two workers read at about the same time, where they are nearly all of either; else 0."""
    shorter = min(len(one.at), len(other.at))
    if shorter < FEWEST_OF_A_WORKER:
        return 0
    common, first, second = np.intersect1d(one.samples, other.samples, assume_unique=True, return_indices=True)
    if len(common) < SHARED_BY_WORKERS * shorter:
        return 0
    # One worker reads in an epoch what another one reads in the next, which is an epoch later.
    apart = np.median(np.abs(one.at[first] - other.at[second]))
    span = min(int(part.at[-1] - part.at[0]) for part in (one, other))
    return len(common) if apart < SIDE_BY_SIDE * span else 0


def _of_orders(loader: LoaderReads) -> Iterator[ScriptFault]:
    yield from _ranks_alike(loader)
    if not loader.shows_epochs:
        return
    for rank in loader.ranks:
        found = [*_epochs_alike(loader, rank), *_hardly_shuffled(loader, rank)]
        if found:  # other ranks have the same fault
            yield from found
            return


def _ranks_alike(loader: LoaderReads) -> Iterator[ScriptFault]:
    """Two ranks go through all samples in one order. Repeated augmentation gives ranks the same samples as well, and
    others in each epoch: so the next epoch must have begun."""
    samples = distinct(loader.stream.samples)
    for one, other in combinations(loader.ranks, 2):
        for epoch, (of_one, of_other) in enumerate(zip(one.whole, other.whole, strict=False)):
            everything = len(distinct(of_one.samples)) >= PARTIAL * len(samples)
            goes_on = sum(len(part.at) for part in one.epochs[epoch + 1 :]) >= FEWEST_ALIKE
            if everything and goes_on and are_alike(of_one, of_other):
                count = len(of_one.at)
                sentence = f"ranks {one.rank} and {other.rank} read the same order in epoch {epoch}, {count:,} samples"
                mend = "DataLoader(..., sampler=DistributedSampler(data))"
                yield ScriptFault(Kind.RANKS_ALIKE, loader.run, epoch, count, sentence, mend)
                return


def _epochs_alike(loader: LoaderReads, rank: RankReads) -> Iterator[ScriptFault]:
    epochs, now = rank.whole, rank.epochs[-1]
    if not rank.is_over and _may_be_compared(epochs, now):
        epochs = rank.epochs
    if len(epochs) < 2:
        return
    repeats = [_begins_alike(one, other) if other is now else are_alike(one, other) for one, other in pairwise(epochs)]
    count = len(epochs[-1].at)
    if all(repeats):
        sentence = f"all {len(epochs)} epochs of rank {rank.rank} have one order, {count:,} reads "
        sentence += "each" if len(epochs) == len(rank.whole) else "of the last one so far"
        mend = "call sampler.set_epoch(epoch) before each epoch"
        yield ScriptFault(Kind.SAME_ORDER, loader.run, len(epochs) - 1, count, sentence, mend)
        return
    for epoch in range(1, len(epochs)):
        alike = _begins_alike if epoch == len(rank.whole) else are_alike
        for earlier in range(epoch):
            if _is_begun_anew(epochs[earlier], epochs[epoch]):
                continue
            if repeats[epoch - 1] if earlier == epoch - 1 else alike(epochs[earlier], epochs[epoch]):
                sentence = f"epoch {epoch} of rank {rank.rank} has the order of epoch {earlier}"
                mend = "restore the sampler's epoch, or call sampler.set_epoch(epoch) with the epoch that follows"
                yield ScriptFault(Kind.REPLAYED, loader.run, epoch, len(epochs[epoch].at), sentence, mend)
                return


def _may_be_compared(whole: Sequence[Stream], now: Stream) -> bool:
    """Whether an epoch that goes on may be compared with those before. Ranks that a launcher has started again begin
    the last one anew, and have others for workers."""
    lengths = [len(epoch.at) for epoch in whole]
    if not lengths or len(now.at) < max(FEWEST_BEGUN, BEGUN * max(lengths)) or min(lengths) < COMPLETE * max(lengths):
        return False
    return len(whole) > 1 or len(np.intersect1d(now.readers, whole[-1].readers)) > 0


def _begins_alike(whole: Stream, now: Stream) -> bool:
    """Whether an epoch that goes on has the order with which a whole one has begun."""
    return are_alike(whole.where(slice(0, len(now.at))), now)


def _is_begun_anew(cut: Stream, whole: Stream) -> bool:
    """Whether an epoch is a part of another one, in its order: a launcher has started the ranks again, which do it on
    purpose."""
    return FEWEST <= len(cut.at) < COMPLETE * len(whole.at) and not differ(cut, whole)


def _hardly_shuffled(loader: LoaderReads, rank: RankReads) -> Iterator[ScriptFault]:
    for epoch, stream in enumerate(rank.whole or rank.epochs[:1]):
        if is_hardly_shuffled(stream):
            count = len(stream.at)
            sentence = f"rank {rank.rank} reads epoch {epoch} nearly in the order of the listing, {count:,} samples"
            mend = "shuffle all samples, or with a buffer of a third of the data set at least"
            yield ScriptFault(Kind.HARDLY_SHUFFLED, loader.run, epoch, count, sentence, mend)
            return


# -- samples


def _of_samples(loader: LoaderReads) -> Iterator[ScriptFault]:
    samples = distinct(loader.stream.samples)
    if not loader.shows_epochs or len(samples) < 2 * FEWEST:
        return
    over = min(len(rank.whole) for rank in loader.ranks)
    epochs = [[rank.epochs[epoch] for rank in loader.ranks] for epoch in range(over)]
    several = bool(epochs) and len(loader.ranks) > 1
    if all(map(_at_the_same_time, epochs)):
        yield from _missing(loader, epochs, samples)
        if several:
            yield from _repeated(loader, epochs)
    elif not _one_after_the_other(loader, over):
        return  # ranks' epochs were cut otherwise, by a validation of one of them or a short epoch
    if several:
        yield from _unequal(loader, epochs)


def _missing(loader: LoaderReads, epochs: list[list[Stream]], samples: NDArray[np.int32]) -> Iterator[ScriptFault]:
    """One epoch leaves out what all others read. If each of them leaves out others, the script draws a part; if it is
    the first one, the script may begin with the easy samples."""
    if len(epochs) > 1 and _count(epochs[0]) < PARTIAL * _count(epochs[1]):
        epochs = epochs[1:]  # the run goes on with the rest of an epoch
    if len(epochs) < 3:
        return
    first_epoch = min(len(rank.whole) for rank in loader.ranks) - len(epochs)
    read = np.array([_ranks_by_sample(of_ranks, samples) > 0 for of_ranks in epochs])
    # One that was read a little later, when another rank had begun the next epoch, was read as often as all others.
    times = np.unique(loader.stream.samples, return_counts=True)[1]
    seldom = times < np.median(times)
    for epoch in range(1, len(epochs) - any(rank.is_over for rank in loader.ranks)):  # a validation may go on
        others = np.delete(read, epoch, axis=0)
        by_all, by_any = others.all(axis=0), others.any(axis=0)
        gone = by_all & ~read[epoch]
        left_out = int((gone & seldom).sum())
        parts = [(rank.epochs[epoch + first_epoch], rank.epochs[epoch + first_epoch + 1]) for rank in loader.ranks]
        if _count([after for _, after in parts]) < GOES_ON * _count(epochs[epoch]) or _is_gone_through_again(parts):
            continue
        settled = by_any.sum() - by_all.sum() <= MISSING / 2 * by_any.sum()
        if settled and left_out > max(FEWEST // 4, MISSING * by_all.sum(), gone.sum() / 2):
            number = epoch + first_epoch
            common = int(by_all.sum())
            sentence = f"epoch {number} leaves out {left_out:,} of the {common:,} samples of all other epochs"
            mend = "see whether the loop left that epoch early, or a rank or worker failed in it"
            yield ScriptFault(Kind.MISSING, loader.run, number, left_out, sentence, mend)
            return


def _is_gone_through_again(parts: list[tuple[Stream, Stream]]) -> bool:
    """Whether what each rank has read of an epoch is what comes first in the next one, to it or to most workers: ranks
    that were started again begin it anew. Another shuffle has as much of it behind."""
    begin, anew = (np.concatenate([firsts(both[which]) for both in parts]) for which in (0, 1))
    if np.isin(anew, begin).mean() > 1 / 2:
        return True
    first = [np.isin(after.samples[: len(part.at)], part.samples) for part, after in parts]
    then = [np.isin(after.samples[len(part.at) :], part.samples) for part, after in parts]
    return bool(np.concatenate(first).mean() - np.concatenate(then).mean() > ANEW)


def _at_the_same_time(of_ranks: list[Stream]) -> bool:
    """Whether what was taken for one epoch of all ranks was read at about the same time."""
    spans = [(int(part.at[0]), int(part.at[-1])) for part in of_ranks]
    shortest = min(end - begin for begin, end in spans)
    return min(end for _, end in spans) - max(begin for begin, _ in spans) >= SAME_TIME * shortest


def _one_after_the_other(loader: LoaderReads, over: int) -> bool:
    """Whether all ranks begin an epoch when all have ended the one before, so that short ones may lie side by side."""
    return over > 1 and all(
        max(int(rank.epochs[epoch].at[-1]) for rank in loader.ranks)
        < min(int(rank.epochs[epoch + 1].at[0]) for rank in loader.ranks if len(rank.epochs) > epoch + 1)
        for epoch in range(over)
        if any(len(rank.epochs) > epoch + 1 for rank in loader.ranks)
    )


def _count(of_ranks: list[Stream]) -> int:
    return sum(len(part.at) for part in of_ranks)


def _repeated(loader: LoaderReads, epochs: list[list[Stream]]) -> Iterator[ScriptFault]:
    """Each rank reads every sample once, and yet ranks read the same ones: what they are dealt overlaps."""
    for epoch, of_ranks in enumerate(epochs):
        if any(map(_repeats, of_ranks)):
            continue
        if min(len(part.at) for part in of_ranks) < 2 * FEWEST:
            continue  # what workers are ahead of each other is as much as an epoch
        # At its ends ranks are in two epochs, as some are ahead.
        inner = [part.where(slice(len(part.at) // 10, -(len(part.at) // 10) or None)) for part in of_ranks]
        every = distinct(np.concatenate([part.samples for part in inner]))
        counts = _ranks_by_sample(inner, every)
        several = int((counts > 1).sum())
        if several > OVERLAP * len(every) and not _at_the_same_step(of_ranks) and not _all_listing(of_ranks):
            sentence = f"several ranks read {several:,} of the {len(every):,} samples of epoch {epoch}, where padding"
            sentence += f" repeats {len(of_ranks) - 1} at most"
            mend = "give all ranks' samplers one seed, and each rank its own part: sampler=DistributedSampler(data)"
            yield ScriptFault(Kind.REPEATED, loader.run, epoch, several, sentence, mend)
            return


def _repeats(part: Stream) -> bool:
    """Whether a rank reads samples twice: drawn with replacement, repeated on purpose, or evaluated, too."""
    return len(distinct(part.samples)) < (1 - OVERLAP / 5) * len(part.at)


def _at_the_same_step(of_ranks: list[Stream]) -> bool:
    """Whether ranks read the samples that they share at about the same step, as repeated augmentation does."""
    for one, other in combinations(of_ranks, 2):
        _, first, second = np.intersect1d(one.samples, other.samples, return_indices=True)
        if len(first) and np.median(np.abs(first - second)) > SAME_STEP + len(one.at) // 5:
            return False
    return True


def _all_listing(of_ranks: list[Stream]) -> bool:
    return all(is_listing(part) for part in of_ranks)


def _unequal(loader: LoaderReads, epochs: list[list[Stream]]) -> Iterator[ScriptFault]:
    """Ranks get unequally many samples of one shuffle, in each epoch. Samples that a rank alone reads in all epochs are
    a part of its own, or an evaluation, but for those that it is dealt so by chance: if what it reads more is as many
    of these, it reads more on purpose."""
    counts = np.array([[len(part.at) for part in of_ranks] for of_ranks in epochs])
    sums = counts.sum(axis=0)
    least, most = int(sums.argmin()), int(sums.argmax())
    enough = max(FEWEST // 4, UNEQUAL * sums[most])
    # Ranks that are ahead have read more of an epoch for a while, and no more in all.
    gaps = counts[:, most] - counts[:, least]
    if len(epochs) < 2 or sums[most] - sums[least] <= enough or gaps.min() <= gaps.max() / 2:
        return
    if any(_repeats(of_ranks[most]) for of_ranks in epochs):
        return
    every, gap = len(_samples([part for of_ranks in epochs for part in of_ranks])), int(gaps.min())
    rest = max(1, every - gap)
    alone, dealt = _read_alone(epochs)[most], min(1, (sums[most] / len(epochs) - gap) / rest)
    if alone + 2 * alone**0.5 > gap + rest * dealt ** len(epochs):
        return
    fewer, more = int(counts[-1, least]), int(counts[-1, most])
    sentence = (
        f"rank {loader.ranks[least].rank} reads {fewer:,} samples an epoch, rank {loader.ranks[most].rank} {more:,}"
    )
    mend = "deal samples evenly: DistributedSampler pads, and even_batches=True does in accelerate"
    yield ScriptFault(Kind.UNEQUAL, loader.run, len(epochs) - 1, more - fewer, sentence, mend)


def _read_alone(epochs: list[list[Stream]]) -> list[int]:
    """By rank, how many samples it reads in each epoch, and no other rank does in any."""
    of_rank = [np.unique(np.concatenate([epoch[rank].samples for epoch in epochs])) for rank in range(len(epochs[0]))]
    every, ranks = np.unique(np.concatenate(of_rank), return_counts=True)
    times = np.zeros(len(every), np.int64)
    for of_ranks in epochs:
        times[np.searchsorted(every, distinct(np.concatenate([part.samples for part in of_ranks])))] += 1
    always = every[(ranks == 1) & (times == len(epochs))]
    return [len(np.intersect1d(samples, always)) for samples in of_rank]


# -- runs that go on


def _resumed(found: list[LoaderReads]) -> Iterator[tuple[LoaderReads, LoaderReads]]:
    """Two runs in a row that read the same samples, the earlier first."""
    for at, after in enumerate(found):
        samples = distinct(after.stream.samples)
        for before in reversed(found[:at]):
            if before.run == after.run or before.stream.at[-1] > after.stream.at[0]:
                continue
            common = len(np.intersect1d(samples, before.stream.samples))
            if 2 * common > min(len(samples), len(distinct(before.stream.samples))):
                yield before, after
                break


def _of_resume(before: LoaderReads, after: LoaderReads) -> Iterator[ScriptFault]:
    if not (before.shows_epochs and after.shows_epochs):
        return
    yield from _replayed(before, after)
    if all(len(rank.epochs) > 1 for rank in after.ranks):
        yield from _rest_of_epoch(before, after)


def _replayed(before: LoaderReads, after: LoaderReads) -> Iterator[ScriptFault]:
    """The second run begins with the order of the first one's beginning, and goes on with another: it is no new run."""
    if len(before.ranks) != len(after.ranks):
        return
    first, second = before.ranks[0], after.ranks[0]
    if not (first.whole and second.whole):
        return
    if len(second.whole) < 2 and sum(len(epoch.at) for epoch in second.epochs[1:]) < FEWEST_BEGUN:
        return
    if are_alike(first.whole[0], second.whole[0]):
        goes_on_in_another = len(first.whole) > 1 and differ(first.whole[1], second.epochs[1])
    else:
        goes_on_in_another = _is_rest_in_order_of(first, second) and differ(first.whole[0], second.epochs[1])
    if goes_on_in_another:
        sentence = "a resumed run began with the order of epoch 0 of the run before, and then went on in another one"
        mend = "restore the sampler's epoch before the first batch: sampler.set_epoch(epoch)"
        yield ScriptFault(Kind.REPLAYED, after.run, 0, len(second.whole[0].at), sentence, mend)


def _is_rest_in_order_of(before: RankReads, after: RankReads) -> bool:
    """Whether a run begins with as much as was left of an epoch, and it is what the run before has begun with: the
    batches are counted on, and the order begins anew. Workers of either run have read ahead."""
    every, rest, done = before.whole[0], after.epochs[0], before.epochs[-1]
    read, whole = len(rest.at) + len(done.at), len(every.at)
    if before.is_over or len(rest.at) >= PARTIAL * whole or not whole <= read <= (1 + 2 * READ_AHEAD) * whole:
        return False
    return are_alike(every.where(slice(0, len(rest.at))), rest)


def _rest_of_epoch(before: LoaderReads, after: LoaderReads) -> Iterator[ScriptFault]:
    """A run that begins with a part of an epoch goes on where the run before has ended, if all is well."""
    rest = _samples([rank.epochs[0] for rank in after.ranks])
    done = _samples([rank.epochs[-1] for rank in before.ranks])
    every = np.union1d(distinct(before.stream.samples), distinct(after.stream.samples))
    if max(len(rest), len(done)) >= PARTIAL * len(every) or min(len(rest), len(done)) < FEWEST_ALIKE // 2:
        return
    again, never = len(np.intersect1d(rest, done)), len(every) - len(np.union1d(rest, done))
    # A part of another shuffle reads some samples again and leaves out others, as many as chance has it.
    by_chance = len(rest) * len(done) / len(every)
    never_by_chance = (len(every) - len(rest)) * (len(every) - len(done)) / len(every)
    if again > READ_AHEAD * len(every) and FEWEST_BY_CHANCE <= FAR_FROM_CHANCE * never_by_chance > never:
        sentence = f"the resumed run read {again:,} samples of the epoch again that the run before had read"
        mend = "restore the sampler's position (StatefulDataLoader.load_state_dict), or skip what was read"
        yield ScriptFault(Kind.REPEATS, after.run, 0, again, sentence, mend)
    if never > SKIPPED * len(every) and FEWEST_BY_CHANCE <= FAR_FROM_CHANCE * by_chance > again:
        sentence = f"neither run read {never:,} of the {len(every):,} samples of the epoch in which the run was resumed"
        mend = "skip the batches that were used, no more: accelerate.skip_first_batches, or the loader's state"
        yield ScriptFault(Kind.SKIPS, after.run, 0, never, sentence, mend)


def _samples(streams: list[Stream]) -> NDArray[np.int32]:
    return distinct(np.concatenate([stream.samples for stream in streams]))
