"""COMMAND of `mlfs peers` beside agents that join, die, hang and refuse: it lives, and the exit code is its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.fuse import wait_until

KEPT = """
import os, signal, sys
from mlfs.errors import ExitCode, MlfsError
from mlfs.peers.keeper import Keeper
how, *words = sys.argv[1:]

def serve(line):
    if how == "dies before":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "refuses":
        raise MlfsError("it is not let in", "a way out", ExitCode.BUSY)
    if how == "breaks":
        raise RuntimeError("MPI_ERR_PROC_FAILED: another one has died")
    if how != "never joins":
        line.say("joined", 0, 2, how != "no peers")
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "breaks later":
        raise RuntimeError("of MPI")
    if how == "hangs":
        os.kill(os.getpid(), signal.SIGSTOP)
    while line.hear() and how == "stays":
        pass
    line.say("leaves")

try:
    code = Keeper(words, 0.5, lambda said: print(said, file=sys.stderr, flush=True)).run(serve)
except MlfsError as error:
    print(error, file=sys.stderr)
    code = int(error.exit_code)
sys.exit(code)
"""
SAYS = {
    "joins": ["node 0 of 2 has joined"],
    "dies": ["node 0 of 2 has joined", "this node's agent is gone (signal 9): its mount goes on alone, COMMAND, too"],
    "dies before": ["this node's agent is gone (signal 9): its mount goes on alone, COMMAND, too"],
    "breaks": [
        "the agent failed: RuntimeError: MPI_ERR_PROC_FAILED: another one has died (its mount goes on alone,"
        " COMMAND, too: see `mlfs status`)"
    ],
    "breaks later": [
        "node 0 of 2 has joined",
        "the agent failed: RuntimeError: of MPI (its mount goes on alone, COMMAND, too: see `mlfs status`)",
    ],
    "never joins": [
        "not all nodes have joined within 0.5 s (--join-timeout): COMMAND begins, and this node serves alone until"
        " they do"
    ],
    "no peers": ["no other node is a peer of node 0 of 2: see `mlfs status`; it serves alone"],
    "hangs": ["node 0 of 2 has joined"],
    "refuses": ["it is not let in (a way out)"],
}
# What COMMAND has of its own, and how it takes what it is sent.
SHOWS = """
import os, signal, sys, time
def end(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")  # print may be under way, and allows no second one
    sys.exit(40 + number)
plain = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGPIPE, signal.SIGTERM)]
assert plain[0] == plain[2] == signal.SIG_DFL, plain
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
assert os.getsid(0) == os.getpid() != os.getppid()
assert not [name for name in os.environ if name.startswith(("PMI_", "PMIX_", "HYDI_"))]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, end)
print(os.getpid(), flush=True)
time.sleep(60)
"""


def begin(how: str, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PMI_RANK": "3", "PMIX_RANK": "3"}
    return subprocess.Popen(
        [sys.executable, "-c", KEPT, how, *words], env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.promise("command-lives")
def test_the_exit_code_is_commands_whatever_becomes_of_the_agent() -> None:
    draw = random.Random(28)
    began = []
    for how in SAYS:
        ends = [(f"exit {code}", code) for code in (0, draw.randint(1, 125))]
        number = draw.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGTERM])
        for words, code in [*ends, (f"kill -{int(number)} $$", 128 + number)]:
            began.append((how, code, begin(how, "sh", "-c", words)))
    for how, code, kept in began:
        _, said = kept.communicate(timeout=60)
        lines = said.splitlines()
        assert lines == SAYS[how][: len(lines)]  # COMMAND may end sooner than the agent's end is heard of
        assert lines
        assert kept.returncode == (7 if how == "refuses" else code), how


@pytest.mark.promise("command-lives")
def test_command_gets_what_the_keeper_is_sent_and_nothing_of_the_launchers() -> None:
    sent = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    kept = [(number, begin("stays", sys.executable, "-c", SHOWS)) for number in sent]
    for number, keeper in kept:
        assert keeper.stdout is not None
        assert keeper.stdout.readline()  # it has begun
        os.killpg(keeper.pid, signal.SIGUSR1)  # Hydra: some process of the job has died
        os.killpg(keeper.pid, number)
    for number, keeper in kept:
        out, said = keeper.communicate(timeout=60)
        assert (out, keeper.returncode) == (f"{number.name}\n", 40 + number), said
    alone = begin("stays")
    assert alone.stderr is not None
    assert alone.stderr.readline() == "node 0 of 2 has joined\n"
    os.killpg(alone.pid, signal.SIGHUP)  # the terminal is gone
    assert alone.communicate(timeout=60) == ("", "")
    assert alone.returncode == 0


@pytest.mark.promise("command-lives")
def test_command_and_agent_do_not_outlive_a_keeper_that_is_killed() -> None:
    keeper = begin("stays", sys.executable, "-c", SHOWS)
    assert keeper.stdout is not None
    pid = int(keeper.stdout.readline())
    (agent,) = [int(child) for child in children(keeper.pid) if int(child) != pid]
    keeper.kill()
    assert keeper.stdout.readline() == "SIGTERM\n"
    wait_until(lambda: not any(Path(f"/proc/{one}").exists() for one in (pid, agent)), 30)
    keeper.communicate(timeout=60)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
