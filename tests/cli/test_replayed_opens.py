"""From recorded opens to streams and epochs."""

from __future__ import annotations

import json
import os
import random
from itertools import chain, count
from pathlib import Path

import pytest

from mlfs.cli.replay import RecordedOpen, epochs_of, read_record, write_orders
from mlfs.errors import ConfigError

PATHS = [b"class%d/%03d.jpg" % (i % 3, i) for i in range(200)]


def recorded(*epochs: list[list[bytes]]) -> list[RecordedOpen]:
    """Processes of an epoch read side by side, in turns; each epoch has processes of its own."""
    times, pids, opens = count(), count(10), []
    for processes in epochs:
        numbered = [(next(pids), iter(paths)) for paths in processes]
        while numbered:
            for pid, paths in list(numbered):
                path = next(paths, None)
                if path is None:
                    numbered.remove((pid, paths))
                else:
                    opens.append(RecordedOpen(float(next(times)), pid, path))
    return opens


def shuffled(seed: int) -> list[bytes]:
    return random.Random(seed).sample(PATHS, len(PATHS))


def test_workers_side_by_side_are_streams_and_those_of_the_next_epoch_go_on_with_them() -> None:
    epochs = [[shuffled(seed)[0::2], shuffled(seed)[1::2]] for seed in range(3)]
    assert epochs_of(recorded(*epochs)) == epochs


def test_processes_one_after_the_other_are_one_stream() -> None:
    order = shuffled(1)
    opens = recorded([order[:120]]) + [RecordedOpen(1000.0 + i, 99, path) for i, path in enumerate(order[120:])]
    assert epochs_of(opens) == [[order]]


def test_one_process_reads_epoch_after_epoch() -> None:
    epochs = [shuffled(seed) for seed in range(3)]
    opens = [RecordedOpen(float(i), 7, path) for i, path in enumerate(chain.from_iterable(epochs))]
    assert epochs_of(opens) == [[epoch] for epoch in epochs]


def test_a_padded_sample_is_no_new_epoch_and_a_file_opened_twice_one_read() -> None:
    order = [*shuffled(1), *shuffled(1)[:5]]
    opens = [RecordedOpen(i + part / 2, 7, path) for i, path in enumerate(order) for part in (0, 1)]
    assert epochs_of([*opens, RecordedOpen(999.0, 8, PATHS[0])])[0][0] == [*order, PATHS[0]]


def test_a_last_epoch_that_was_cut_short_is_left_out_unless_there_is_no_other() -> None:
    first, second = shuffled(1), shuffled(2)
    assert epochs_of(recorded([first], [second[:90]])) == [[first]]
    assert epochs_of(recorded([first[:90]])) == [[first[:90]]]
    assert epochs_of([]) == []


def test_every_epoch_has_as_many_streams() -> None:
    found = epochs_of(recorded([PATHS[:100], PATHS[100:]], [shuffled(3)]))
    assert [len(streams) for streams in found] == [2, 2]
    assert found[1] == [shuffled(3), [shuffled(3)[0]]]


def test_opens_of_one_instant_stay_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    """The daemon digests opens in bunches: two of them may have the same microsecond, even of two processes."""
    orders = [shuffled(1), shuffled(2)]
    record = tmp_path / "run.opens"
    lines = [json.dumps([1.5, 20 - epoch, 1, os.fsdecode(path)]) for epoch in (0, 1) for path in orders[epoch]]
    record.write_text("".join(line + "\n" for line in lines))
    assert epochs_of(read_record(str(record))) == [[order] for order in orders]
    halves = [RecordedOpen(1.5, 20 - half, path) for half in (0, 1) for path in orders[0][half * 100 :][:100]]
    assert epochs_of(halves) == [[orders[0]]]


def test_order_files_replace_earlier_ones_and_nothing_else(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    for wanted in (3, 2):
        write_orders(str(orders), [[[b"b", b"a"]]], wanted)
        assert sorted(path.name for path in orders.iterdir()) == [f"{epoch}-0" for epoch in range(wanted)]
    (orders / "notes.txt").write_text("of somebody")
    with pytest.raises(ConfigError, match="no directory of orders"):
        write_orders(str(orders), [[[b"b", b"a"]]], 1)
    assert (orders / "notes.txt").read_text() == "of somebody"
