"""The log of reads that the auditor keeps: reads go on while a thread judges those so far."""

from __future__ import annotations

from threading import Event, Thread

from mlfs.audit.reads import Kin, ReadLog
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
