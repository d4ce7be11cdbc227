"""Signals to commands: the terminal is as before, and the command has died of the signal, within a second or so."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.slow import SlowSource

from mlfs.cli import client

# A command with a mount that answers at once; nothing is mounted.
RUN = """
import signal, sys
from mlfs.cli import client
signal.signal(signal.SIGINT, signal.default_int_handler)
client.require_mount = lambda path: path
client.read_status = lambda *_: {"mountpoint": "/data", "state": "serving", "jobs": []}
from mlfs.cli.main import main
sys.exit(main())
"""
PATIENCE_S = 60


def read_until(fd: int, wanted: bytes, found: bytes = b"") -> bytes:
    """What comes until this does."""
    deadline = time.monotonic() + PATIENCE_S
    while wanted not in found:
        assert time.monotonic() < deadline, found
        if select.select([fd], [], [], 0.1)[0]:
            found += os.read(fd, 1 << 16)
    return found


@pytest.mark.promise("signals-heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("words", [["top"], ["status", "--watch"]], ids=" ".join)
def test_the_terminal_is_put_back(words: list[str], number: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-c", RUN, words[0], "/data", *words[1:]]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    try:
        shown = read_until(ours, b"/data", read_until(ours, b"\x1b[?25l"))  # the cursor is hidden, and it is at work
        process.send_signal(number)
        shown = read_until(ours, b"\x1b[?25h", shown)
        if words == ["top"]:
            assert b"\x1b[?1049h" in shown
            shown = read_until(ours, b"\x1b[?1049l", shown)
        assert process.wait(PATIENCE_S) == (0 if number == signal.SIGINT else -number)
        assert b"Traceback" not in shown
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.promise("signals-heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["standard input", "fifo"])
def test_a_signal_ends_the_wait_for_input(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    path = "-" if kind == "standard input" else str(fifo)
    words = [sys.executable, "-c", RUN, "register", "/data", "--epochs", "1", "--dry-run", "--json-file", path]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        started = Path(f"/proc/{process.pid}/syscall")  # once it waits for input, it does so in select(2)
        deadline = time.monotonic() + PATIENCE_S
        while not started.read_text().startswith(("270 ", "23 ", "72 ")):
            assert time.monotonic() < deadline, started.read_text()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == (130 if number == signal.SIGINT else -number)
    finally:
        process.kill()
        process.wait()


def waits_for_long(pid: int) -> bool:
    """Whether its main thread has been in the same system call for a while."""
    call = Path(f"/proc/{pid}/syscall")
    before = call.read_text()
    time.sleep(0.5)
    return before != "running\n" and before == call.read_text()


@pytest.mark.promise("signals-heard")
def test_a_signal_ends_a_look_at_a_source_that_hangs(slow_source: SlowSource) -> None:
    """Nothing reaches a main thread that waits for such a source, so each command has another one that hears."""
    source = str(slow_source.path)
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    commands = (
        ["calibrate", source],
        ["order", source, "--epochs", "1"],
        ["plan", source, "--epochs", "1", "--step-time", "1s"],
    )
    os.kill(slow_source.pid, signal.SIGSTOP)
    begun = [
        (number, subprocess.Popen([sys.executable, "-c", RUN, *words], stderr=subprocess.PIPE))
        for number in numbers
        for words in commands
    ]
    try:
        for number, process in begun:
            wait_until(partial(waits_for_long, process.pid), PATIENCE_S)
            process.send_signal(number)
        for number, process in begun:
            _, said = process.communicate(timeout=PATIENCE_S)
            assert process.returncode in (128 + number, -number)
            assert said == (b"mlfs: interrupted\n" if number == signal.SIGINT else b"")
    finally:
        os.kill(slow_source.pid, signal.SIGCONT)
        for _, process in begun:
            process.kill()
            process.communicate()


def test_a_signal_that_comes_before_the_read_is_heard() -> None:
    """The handler has run in C, and Python's has not yet: the next system call must not wait for ever."""
    code = """
import os, signal, select, sys
from mlfs import user_input
wait = select.select
def late(*words):
    if not late.sent:
        late.sent = True
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGTERM)
        ready = wait(*words)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return ready
    return wait(*words)
late.sent = False
user_input.select.select = late
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
user_input.read_bytes("-", 100)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert process.wait(PATIENCE_S) == 7
    finally:
        process.kill()
        process.wait()


def test_a_second_ctrl_c_does_not_cut_off_what_gives_a_registration_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def call(_function: object, _timeout_s: float) -> tuple[bool, bytes]:
        calls.append("begun")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # Python runs the handler between two steps, if it is to run now
        calls.append("ended")
        return True, b"{}"

    monkeypatch.setattr(client, "check_not_stopped", lambda _mountpoint: None)
    monkeypatch.setattr(client.interface, "call_with_timeout", call)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            client.send("/data", {"op": "register"}, give_up={"op": "give-up"})
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == ["begun", "begun", "ended"]
