"""The log of reads that the auditor keeps: reads go on while a thread judges those so far."""

from __future__ import annotations

from io import BytesIO
from threading import Event, Thread

from mlfs.audit.reads import READ_BYTES, KeptReads, Kin, ReadLog
from mlfs.follow.evidence import UNTIMED, Read

READS = [Read(sample, 100 + sample % 4, 1, UNTIMED) for sample in range(1000)]


def log_of(reads: list[Read]) -> ReadLog:
    log = ReadLog(lambda process, _: Kin(process, process), most_reads=1 << 22)
    log.add(reads)
    return log


def test_a_copy_has_the_reads_so_far() -> None:
    log = log_of(READS)
    copied = log.copy()
    log.add([Read(7, 200, 1, UNTIMED)])
    assert copied.reads().samples.tolist() == [read.sample for read in READS]
    assert (len(copied.reads().kin), len(log.reads().kin)) == (4, 5)


def test_another_process_goes_on_with_the_reads_that_were_kept() -> None:
    file, readers = BytesIO(), list[tuple[int, Kin]]()
    kept = KeptReads(file, comes=lambda process, place: readers.append((process, place)))
    log = ReadLog(lambda process, _: Kin(process, process), most_reads=600, kept=kept)
    log.add(READS[:500])
    count, forgotten = log.count, log.forgotten
    log.add(READS[500:510])  # of these it was not said that they came
    again = ReadLog(lambda process, _: Kin(process, process), 600, KeptReads(file, count, forgotten, readers))
    again.add(READS[500:])
    assert (again.count, again.forgotten) == (1000, 500)
    assert again.reads().samples.tolist() == [read.sample for read in READS[500:]]
    assert [again.reads().kin[reader].run for reader in again.reads().readers] == [read.process for read in READS[500:]]
    # Killed while it forgot the older half: what is in the file by then is no part of the reads.
    file.truncate(7 * READ_BYTES)
    none = ReadLog(lambda process, _: Kin(process, process), 600, KeptReads(file, 1000, 500, readers))
    assert (none.count, none.forgotten, len(none.reads().samples)) == (1000, 1000, 0)


def test_a_number_that_another_process_gets_is_another_reader() -> None:
    began = {100: 1}
    log = ReadLog(lambda process, _: Kin(process, process, began[process]))
    for at_s, ticks in (1.0, 1), (2.0, 1), (500.0, 1), (1000.0, 9), (1500.0, 0):  # 0: it has just ended
        began[100] = ticks
        log.add([Read(0, 100, 1, at_s)])
    assert log.reads().readers.tolist() == [0, 0, 0, 1, 1]


def test_reads_come_while_a_thread_asks_a_copy() -> None:
    log, over = log_of(READS * 2000), Event()
    copied = log.copy()

    def ask() -> None:
        while not over.is_set():
            copied.reads()

    thread = Thread(target=ask)
    thread.start()
    try:
        for _ in range(200):
            log.add(READS[:10])  # `BufferError` where a thread reads the same arrays
    finally:
        over.set()
        thread.join()
    assert len(log.reads().samples) == 2000 * len(READS) + 2000
