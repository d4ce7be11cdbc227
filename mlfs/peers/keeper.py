"""The keeper: the process of `mlfs peers`, which runs the node's agent and COMMAND beside each other and knows no MPI.

In: what the agent does, COMMAND, signals. Out: COMMAND's exit code. Launchers of MPI end a job's processes when
one of them dies, and COMMAND is to live as its mount does. So MPI is in the agent alone, a child; COMMAND has a session
of its own, which no signal of the launcher reaches but by the keeper. The launcher has started the keeper, which
lives for as long as COMMAND, so nobody takes an agent's end for the end of the node.

The agent tells the keeper how it does over one pipe, and hears over another that COMMAND is done, or, when that is
closed, that it shall leave.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.peers.liveness import LEAVE_PATIENCE_S
from mlfs.processes import end_with_parent, name_this

# A launcher tells its own process these: COMMAND is not that process, and MPI in it would take itself for it.
_LAUNCHERS = ("PMI_", "PMIX_", "HYDI_", "PMI2_")
# A node whose COMMAND ended well goes on giving what it holds until the others are done, and for no longer than this.
STAY_S = 300.0
# An agent that shall leave says so at once, unless it hangs. Then it takes leave of the others and ends MPI, which some
# libraries take ten seconds for (mlfs.peers.mpi).
_ANSWER_PATIENCE_S = 3.0
_END_PATIENCE_S = LEAVE_PATIENCE_S + 13.0
# The signals by which a batch system, a terminal or a user ends this command: all of them are COMMAND's.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# By it Hydra tells all processes of the job that one has died.
_LAUNCHERS_OWN = signal.SIGUSR1
_DONE = b"D"
AGENT_NAME = "mlfs-agent"


class KeeperLine:
    """The agent's end of the pipes to its keeper.

    Attributes:
        end: can be read when there is something to hear.
    """

    def __init__(self, end: int, said: int) -> None:
        self.end = end
        self._said = said

    def say(self, *report: object) -> None:
        """Tell the keeper something. One that is gone does not hear it."""
        with suppress(OSError):
            os.write(self._said, json.dumps(report).encode() + b"\n")

    def hear(self) -> bool:
        """Once `end` can be read: whether COMMAND is done, and the agent may stay; else it shall leave."""
        stays = os.read(self.end, 1) == _DONE
        if stays:
            self.say("stays")
        return stays


class Keeper:
    """Runs the agent and COMMAND, and passes signals on to COMMAND.

    Args:
        command: COMMAND; empty: the agent alone. join_timeout_s: COMMAND begins when all nodes have joined, and after
            so long in any case. say: prints a line.
    """

    def __init__(self, command: Sequence[str], join_timeout_s: float, say: Callable[[str], None]) -> None:
        self._command = list(command)
        self._join_timeout_s = join_timeout_s
        self._say = say
        self._end_signal = 0  # the first signal that ends this command
        self._process: subprocess.Popen[bytes] | None = None
        self._agent = self._leave = self._said = -1
        self._ended = -1  # can be read once COMMAND has ended
        self._heard = b""
        self._agent_code: int | None = None  # how it ended
        self._failure: MlfsError | None = None  # why it could not begin
        self._joined = self._leaving = self._stays = self._leaves = self._broke = False
        self._in_mpi = False

    def run(self, serve: Callable[[KeeperLine], None]) -> int:
        """Run the agent, which does this, and COMMAND. Returns COMMAND's exit code. Raises: MlfsError."""
        self._hear_signals()
        self._fork(serve)
        code = 1
        try:
            self._await_others()
            if self._failure is not None:
                raise self._failure
            code = self._with_command() if self._command else self._without()
        finally:
            self._end_agent(stays=code == 0)
            for number in (*_FORWARDED, _LAUNCHERS_OWN):
                signal.signal(number, signal.SIG_IGN)  # Python's end would make what is handled deadly again
            if self._in_mpi:
                say_goodbye()
        return code

    def _hear_signals(self) -> None:
        """Signals are read of a pipe, so that none is lost on the way into a wait. COMMAND has none of this."""
        self._wake, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (*_FORWARDED, _LAUNCHERS_OWN):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup mlfs peers ...`
                signal.signal(number, lambda *_: None)

    def _fork(self, serve: Callable[[KeeperLine], None]) -> None:
        """Start the agent. It is a fork of this process, which has one thread and no MPI yet."""
        end, self._leave = os.pipe()
        self._said, said = os.pipe()
        keeper = os.getpid()
        self._agent = os.fork()
        if self._agent == 0:
            end_with_parent(signal.SIGKILL, keeper)  # for as long as MPI waits for the others, nothing else is heard
            os.close(self._leave)
            os.close(self._said)
            _be_agent(serve, KeeperLine(end, said))
        os.close(end)
        os.close(said)

    # -- what happens

    def _turn(self, until_s: float | None = None) -> None:
        """Wait for what happens next, until then at most."""
        ears = [fd for fd in (self._wake, self._said, self._ended) if fd >= 0]
        wait_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        ready = select.select(ears, [], [], wait_s)[0]
        if self._ended in ready and self._process is not None:
            self._process.wait()
            os.close(self._ended)
            self._ended = -1
        if self._wake in ready:
            for number in os.read(self._wake, 64):
                self._signalled(number)
        if self._said in ready:
            self._hear()

    def _signalled(self, number: int) -> None:
        if number not in _FORWARDED:
            return
        self._end_signal = self._end_signal or number
        if self._process is not None and self._ended >= 0:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _hear(self) -> None:
        """The agent says something, or is gone."""
        data = os.read(self._said, 1 << 16)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._take(*json.loads(line))
        if not data:
            self._agent_gone()

    def _take(self, word: str, *values: Any) -> None:
        if word == "joined":
            self._joined = True
            node, nodes, peers = values
            if nodes == 1:
                self._say("there are no other nodes in this MPI job: this one serves alone")
            elif not peers:
                self._say(f"no other node is a peer of node {node} of {nodes}: see `mlfs status`; it serves alone")
            else:
                self._say(f"node {node} of {nodes} has joined")
        elif word == "failed":
            message, hint, code = values
            self._failure = MlfsError(message, hint, ExitCode(code))
            if self._process is not None:
                self._say(f"{self._failure}; this node goes on alone")
        elif word == "broke":  # as when it is killed: MPI may raise because another node's agent has died
            self._broke = True
            (said,) = values
            self._say(f"{said} (its mount goes on alone{', COMMAND, too' * bool(self._command)}: see `mlfs status`)")
        elif word == "stays":
            self._stays = True
        elif word == "leaves":
            self._leaves = True
        else:
            self._in_mpi = word == "in MPI"

    def _agent_gone(self) -> None:
        os.close(self._said)
        self._said = -1
        self._agent_code = os.waitstatus_to_exitcode(os.waitpid(self._agent, 0)[1])
        if not (self._leaving or self._leaves or self._failure or self._broke):
            how = f"signal {-self._agent_code}" if self._agent_code < 0 else f"exit code {self._agent_code}"
            self._say(
                f"this node's agent is gone ({how}): its mount goes on alone{', COMMAND, too' * bool(self._command)}"
            )

    # -- one after the other

    def _await_others(self) -> None:
        until_s = time.monotonic() + self._join_timeout_s
        while not (self._joined or self._end_signal or self._said < 0):
            self._turn(until_s)
            if time.monotonic() >= until_s and not self._joined:
                begins = "COMMAND begins, and " if self._command else ""
                self._say(
                    f"not all nodes have joined within {self._join_timeout_s:g} s (--join-timeout): {begins}this node"
                    " serves alone until they do"
                )
                return

    def _with_command(self) -> int:
        if self._end_signal:
            return 128 + self._end_signal
        try:
            # This process has one thread.
            self._process = subprocess.Popen(
                self._command,
                env=_without_launcher(),
                start_new_session=True,
                preexec_fn=partial(_as_command, os.getpid()),  # noqa: PLW1509
            )
        except OSError as error:
            raise ConfigError(
                f"{self._command[0]} cannot be run: {error.strerror}", "check the name behind --"
            ) from None
        self._ended = os.pidfd_open(self._process.pid)
        while self._ended >= 0:
            self._turn()
        code = int(self._process.returncode)
        return code if code >= 0 else 128 - code

    def _without(self) -> int:
        """Without COMMAND the agent is what runs."""
        while not self._end_signal and self._said >= 0:
            self._turn()
        code = self._agent_code or 0
        return code if code >= 0 else 128 - code

    def _end_agent(self, stays: bool) -> None:
        """Have the agent leave: once all nodes are done, where COMMAND has ended well."""
        self._leaving = True
        if stays and self._command and self._joined and not self._end_signal:
            with suppress(OSError):
                os.write(self._leave, _DONE)
            self._until(lambda: self._stays or self._leaves, _ANSWER_PATIENCE_S)
            if self._stays:
                self._until(lambda: bool(self._end_signal), STAY_S)
        os.close(self._leave)
        self._until(lambda: self._leaves, _ANSWER_PATIENCE_S)
        if self._leaves:
            self._until(lambda: False, _END_PATIENCE_S)
        if self._said >= 0:
            os.kill(self._agent, signal.SIGKILL)
            self._until(lambda: False, _END_PATIENCE_S)

    def _until(self, enough: Callable[[], bool], patience_s: float) -> None:
        """Wait until the agent is gone, or enough was heard."""
        until_s = time.monotonic() + patience_s
        while self._said >= 0 and not enough() and time.monotonic() < until_s:
            self._turn(until_s)


def _without_launcher() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}


def _as_command(keeper: int) -> None:
    """In COMMAND's process: it gets no signal withheld, and ends when the keeper is killed."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    end_with_parent(signal.SIGTERM, keeper)


def _be_agent(serve: Callable[[KeeperLine], None], line: KeeperLine) -> NoReturn:
    """In the agent's process: signals are the keeper's, and nothing is left to the code that this was forked from."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_FORWARDED, _LAUNCHERS_OWN):
            signal.signal(number, signal.SIG_IGN)
        name_this(AGENT_NAME)
        serve(line)
        code = 0
    except MlfsError as error:
        line.say("failed", error.message, error.hint, int(error.exit_code))
        code = int(error.exit_code)
    except BaseException as error:
        line.say("broke", f"the agent failed: {type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        os._exit(code)


# -- what the launcher of the MPI job is told by a node whose agent could not tell it
#
# MPICH's launcher (Hydra) takes a process that ends without a word for one that has failed: it ends all others, or
# sends them a signal. The word is one of MPI_Finalize, which takes all nodes, and an agent that was killed or leaves
# before the others cannot have said it. The keeper has the same connection to the launcher, and says it for the agent.
# Other launchers take flags for this (docs/peers.md).

_PATIENCE_S = 2.0


def say_goodbye() -> None:
    """Say that this process has ended its part in MPI (`finalize` of PMI 1), where Hydra has started it."""
    fd = os.environ.get("PMI_FD", "")
    if "HYDI_CONTROL_FD" not in os.environ or not fd.isdecimal():
        return
    with suppress(OSError):
        os.write(int(fd), b"cmd=finalize\n")
        until_s, answer = time.monotonic() + _PATIENCE_S, b""
        # A question of the agent that waits is answered first. An agent that ends before the answer was not heard.
        while b"finalize_ack" not in answer and (left_s := until_s - time.monotonic()) > 0:
            if not select.select([int(fd)], [], [], left_s)[0] or not (more := os.read(int(fd), 4096)):
                return
            answer += more
