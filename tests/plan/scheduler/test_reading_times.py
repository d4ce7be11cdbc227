"""How long a job read and waited: from the first read to the last one, epoch by epoch, by how many readers."""

from __future__ import annotations

from mlfs.plan.scheduler.reading_times import KEPT_EPOCHS, EpochTime, ReadingTime, ReadingTimes


def test_a_job_reads_from_its_first_read_to_its_last() -> None:
    times = ReadingTimes()
    assert times.statistics() == ReadingTime()
    for observed, now, stalls in ((0, 5.0, 1.0), (1, 10.0, 2.0), (7, 30.0, 6.0), (7, 99.0, 9.0)):
        times.note(0, observed, now, stalls)
    assert times.statistics() == ReadingTime(20, 4, (EpochTime(0, 20, 4, 1, 7),))
    times.note(0, 2, 100.0, 9.0)
    assert times.statistics() == ReadingTime(0, 0, (EpochTime(0, 0, 0, 1, 2),))


def test_each_epoch_has_its_own_time_and_its_own_readers() -> None:
    times = ReadingTimes()
    times.note(0, 0, 0.0, 0.0)
    for epoch, processes in ((0, (1, 2)), (1, (3, 4, 5)), (2, (6,))):
        for step in range(3):
            for process in processes:
                times.read(process)
            times.note(epoch, 30 * epoch + 10 * (step + 1), 100.0 * epoch + step, 10.0 * epoch + step / 2)
    told = (EpochTime(0, 2.0, 1.0, 2, 30), EpochTime(1, 2.0, 1.0, 3, 30), EpochTime(2, 2.0, 1.0, 1, 30))
    assert times.statistics().epochs == told


def test_of_very_many_epochs_the_last_ones_are_told() -> None:
    times = ReadingTimes()
    for epoch in range(3 * KEPT_EPOCHS):
        times.note(epoch, epoch + 1, float(epoch), 0.0)
    assert [one.epoch for one in times.statistics().epochs] == list(range(2 * KEPT_EPOCHS, 3 * KEPT_EPOCHS))


def test_threads_that_wait_together_are_readers_too() -> None:
    times = ReadingTimes()
    times.waiting(9)
    times.note(0, 0, 0.0, 0.0)
    times.read(1)
    times.note(0, 1, 1.0, 0.0)
    times.waiting(4)
    times.waiting(2)
    times.note(0, 2, 3.0, 4.0)
    (epoch,) = times.statistics().epochs
    assert (epoch.readers, epoch.waited_share) == (4, 0.5)


def test_nobody_waits_longer_than_all_the_time() -> None:
    assert EpochTime(0, 1.0, 5.0, 2, 9).waited_share == 1.0
    assert EpochTime(0, 0.0, 0.0, 1, 1).waited_share == 0.0
