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
