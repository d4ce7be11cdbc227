"""Files that a registration names: whatever lies there, reading it ends soon and takes bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs import user_input
from mlfs.errors import JobError
from mlfs.orders.mt19937 import TorchWords
from mlfs.orders.order_file import Lines, read_lines, read_weights
from mlfs.orders.stopping import StoppedError, stoppable


def fifo(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


def sparse(path: Path) -> str:
    with path.open("wb") as file:
        file.truncate(24 << 30)
    return str(path)


@pytest.mark.parametrize("make", [fifo, sparse, str, lambda _: "/dev/zero", lambda path: str(path.parent)])
def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path, make: Callable[[Path], str]) -> None:
    began = time.monotonic()
    with pytest.raises(JobError) as caught:
        read_weights(make(tmp_path / "named"))
    assert caught.value.field == "weights_file"
    assert time.monotonic() - began < user_input.PATIENCE_S / 2


@pytest.mark.parametrize("stopped", [False, True])
def test_a_file_that_does_not_answer_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    (tmp_path / "named").write_text("0\n")
    answers, before = threading.Event(), os.read

    def hangs(fd: int, count: int) -> bytes:
        assert answers.wait(60)
        return before(fd, count)

    with monkeypatch.context() as patch:
        patch.setattr(user_input.os, "read", hangs)
        patch.setattr(user_input, "PATIENCE_S", 60.0 if stopped else 0.3)
        with pytest.raises(StoppedError if stopped else JobError) as caught, stoppable(lambda: stopped):
            read_lines(str(tmp_path / "named"))
        assert stopped or "nothing was read" in caught.value.message
        answers.set()
    assert len(read_lines(str(tmp_path / "named"))) == 1


def test_files_left_behind_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named").write_text("0\n")
    answers = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(user_input.os, "read", lambda fd, count: answers.wait(60) and b"")
        patch.setattr(user_input, "PATIENCE_S", 0.0)
        before = threading.active_count()
        for _ in range(40):
            with pytest.raises(JobError):
                read_lines(str(tmp_path / "named"))
        assert threading.active_count() - before <= 16
        answers.set()
    while threading.active_count() > before:
        time.sleep(0.01)


@given(st.binary(max_size=200).map(lambda data: data.replace(b"x", b"\n").replace(b"y", b"\r\n")))
def test_lines_are_those_of_a_plain_reading(data: bytes) -> None:
    plain = enumerate((line.removesuffix(b"\r") for line in data.split(b"\n")), 1)
    wanted = [(number, text) for number, text in plain if text]
    lines = Lines(data)
    assert list(lines) == wanted
    assert len(lines) == len(wanted)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from(["text", "<f8", "<f4", "<i4"]))
def test_weights_are_read_back(weights: list[float], kind: str) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"mlfs-weights-{os.getpid()}.npy"
    array = np.array(weights) if kind == "text" else np.array(weights).astype(kind)
    try:
        if kind == "text":
            path.write_text("\n".join(map(repr, weights)))
        else:
            np.save(path, array)
        assert read_weights(str(path)).tolist() == array.astype(np.float64).tolist()
    finally:
        path.unlink()


@pytest.mark.parametrize("shape", [(10**12,), (3, 2), (1 << 62, 4), (0,)])
def test_a_header_that_lies_takes_no_memory(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with (tmp_path / "named.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
        file.write(bytes(48))
    with pytest.raises(JobError, match="cannot be used"):
        read_weights(str(tmp_path / "named.npy"))


@given(st.integers(0, 3 * (1 << 18)), st.integers(0, 2**32))
def test_words_that_are_skipped_are_those_that_are_taken(count: int, seed: int) -> None:
    skipping, taking = TorchWords(seed), TorchWords(seed)
    skipping.skip(count)
    taking.take(count)
    assert skipping.take(5).tolist() == taking.take(5).tolist()


def test_skipping_ends_when_nobody_waits() -> None:
    looks = iter([False] * 5)
    with pytest.raises(StoppedError), stoppable(lambda: next(looks, True)):
        TorchWords(1).skip(10**10)
