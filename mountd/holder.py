"""The holder of one mount: it keeps what must outlive the server, starts the server, and starts it again when it dies.

In: the mount's config; from the server, by a socket, descriptors by name, and words. Out: a server that has what the
one before it left; the exit code of the mount. It is the process that `mlfs mount` starts, and it imports next to
nothing: what does little dies seldom. The server is a fork of it, made before anything else is loaded.

The kernel's requests wait while nobody serves, as long as somebody has the descriptor of /dev/fuse open. So no other
process may have it: a worker or reader that has it could never die while it waits for a server.

If the holder dies the server starts another one, and hands everything to it (mountd.left_behind.Holding). Then the
server is no child of its holder: nothing here needs it to be.

The server's words: `keep NAME...`, with a descriptor each, in the place of all that was kept before; `serving`, when it
answers; `over CODE`, when it ends by itself, or the mount has ended: nothing is kept any more.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

LONGEST_WORDS_BYTES = 4096
MOST_KEPT = 16
# What is passed on to the server: it alone knows what they mean to a mount.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
# A server that dies before it serves will do so again.
MOST_EARLY_DEATHS = 5
# After so many of them the next one begins with an empty RAM tier: the machine may lack that memory.
EARLY_DEATHS_WITH_MEMORY = 2
# One that dies so soon after it began to serve counts as one that dies at what it is asked for. So many in a row are no
# accident any more, and more than somebody who tries it out kills.
STEADY_S = 10.0
MOST_DEATHS = 50
# The first is followed at once. Later ones leave the machine some time: it may lack memory.
LONGEST_PAUSE_S = 1.0
# A server of which threads hang in the source ends without a sign that this could wait for. One that has said that it
# ends does so at once.
LOOK_MS, LOOK_SOON_MS = 1000, 10
# The threads of a process end one after the other, unless they hang.
THREADS_END_MS = 200


class Start(NamedTuple):
    """The words and descriptors with which a server begins.

    Attributes:
        config: of the mount, as JSON. report_fd: where it tells `mlfs mount` how its start goes; -1: nobody asks.
        channel: to its holder. kept: descriptors by name, that the server before it has left; none for the first.
        restarts: how often a server was started again. why: how the one before it ended, in words.
        holder_restarts: how often the holder was.
    """

    config: str
    report_fd: int
    channel: socket.socket
    kept: Mapping[str, int]
    restarts: int = 0
    why: str = ""
    holder_restarts: int = 0


Serve = Callable[[Start], int]


class Deaths:
    """Judges whether a server that has died is started again, and after which pause.

    Attributes:
        restarts: how many were. early: deaths in a row before the server answered.
    """

    def __init__(self, restarts: int = 0) -> None:
        self.restarts = restarts
        self.early = self._in_a_row = 0

    def pause_s(self, served_s: float | None) -> float | None:
        """The pause before the next start; None: no more of them. `served_s`: how long it has served, None: it did not
        come to that."""
        self.restarts += 1
        self.early = self.early + 1 if served_s is None else 0
        self._in_a_row = self._in_a_row + 1 if served_s is None or served_s < STEADY_S else 1
        if self.early >= MOST_EARLY_DEATHS or self._in_a_row > MOST_DEATHS:
            return None
        return min(LONGEST_PAUSE_S, 0.01 * 2.0 ** max(self.early, self._in_a_row // 4) - 0.01)


class MountHolder:
    """Keeps one server running.

    Args:
        config: of the mount, as JSON. serve: what a server does, in a process of its own; returns its exit code.
        report_fd: of the first server's reports.
    """

    def __init__(self, config: str, serve: Serve, report_fd: int = -1) -> None:
        self._config = config
        self._serve = serve
        self._report_fd = report_fd
        self._kept: dict[str, int] = {}
        self._deaths = Deaths()
        self._holder_restarts = 0
        self._channel: socket.socket | None = None
        self._pid = self._pidfd = -1
        self._serves_since: float | None = None
        self._over: int | None = None
        self._signals: list[int] = []  # that came while there was no server
        self._hears = True  # whether the server may still say something
        self._before: dict[int, Any] = {}  # what signals did before this passed them on

    def run(self) -> int:
        """Start the server, and hold until the mount has ended. Returns the exit code; the server returns from here,
        too."""
        self._pass_signals_on()
        code = self._start("")
        return self._hold() if code is None else code

    def go_on(self, server: int, channel: socket.socket, restarts: int, holder_restarts: int) -> int:
        """Hold what a server hands over whose holder has died. The rest is as in `run`."""
        self._pass_signals_on()
        self._deaths, self._holder_restarts = Deaths(restarts), holder_restarts
        self._channel, self._pid, self._pidfd = channel, server, pidfd_of(server)
        self._serves_since = time.monotonic()
        return self._hold()

    def _pass_signals_on(self) -> None:
        for number in PASSED_ON:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # nohup
                self._before[number] = before
                signal.signal(number, self._pass_on)

    def _hold(self) -> int:
        while True:
            why = self._watch()
            if self._over is not None:
                return self._over
            served_s = None if self._serves_since is None else time.monotonic() - self._serves_since
            if "fuse" not in self._kept:  # it had not mounted yet, or no mount can be taken over here
                return self._end_as(why)
            pause_s = self._deaths.pause_s(served_s)
            if pause_s is None:
                said = f"the server {why}, and so did those before it: this mount is given up, and its reads fail"
                say(self._config, f"{said} (mlfs unmount takes it away)")
                return 1
            if self._deaths.early >= EARLY_DEATHS_WITH_MEMORY:
                self._let_go([name for name in self._kept if name.startswith("ram")])
            time.sleep(pause_s)
            lacks = ""
            while not gone(self._kept["fuse"]):
                try:
                    code = self._start(why)
                    break
                except OSError as error:  # of fork(2): the machine lacks memory, or this user processes
                    if str(error.strerror) != lacks:
                        lacks = str(error.strerror)
                        say(self._config, f"no server can be started: {lacks}: requests wait until one can")
                    time.sleep(LONGEST_PAUSE_S)
            else:
                return 0
            if code is not None:
                return code

    def _start(self, why: str) -> int | None:
        """Fork a server. Returns its exit code in the server, None in the holder. Raises: OSError."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            mine.close()
            theirs.close()
            raise
        if pid == 0:
            mine.close()
            for number, handler in self._before.items():
                signal.signal(number, handler)
            if not self._kept:  # one that takes over hears of them once it can act on them
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            start = Start(
                self._config, self._report_fd, theirs, self._kept, self._deaths.restarts, why, self._holder_restarts
            )
            return self._serve(start)
        theirs.close()
        if self._report_fd >= 0:
            os.close(self._report_fd)  # the reports end when the server does
            self._report_fd = -1
        self._channel, self._pid, self._pidfd = mine, pid, pidfd_of(pid)
        self._serves_since = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signals, self._signals = self._signals, []
        for number in signals:
            self._pass_on(number, None)
        return None

    def _watch(self) -> str:
        """Hear the server until it has died. Returns how it ended."""
        channel, ready = self._channel, select.poll()
        assert channel is not None
        channel.setblocking(False)
        self._hears = True
        ready.register(channel, select.POLLIN)
        end = select.poll()
        if self._pidfd >= 0:
            ready.register(self._pidfd, select.POLLIN)
            end.register(self._pidfd, select.POLLIN)
        while not is_over(self._pid):
            (ready if self._hears else end).poll(LOOK_MS if self._over is None else LOOK_SOON_MS)
            self._hear_all(channel)
        self._hear_all(channel)  # what it said before it died counts
        channel.close()
        self._channel = None
        if self._pidfd >= 0:
            end.poll(THREADS_END_MS)
            os.close(self._pidfd)
            self._pidfd = -1
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = 0, 0
        self._pid = -1
        if not pid:  # no child of this process, or threads of it hang in the source
            return "died"
        code = os.waitstatus_to_exitcode(status)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _hear_all(self, channel: socket.socket) -> None:
        """Take all that the server has said."""
        while self._hears:
            try:
                said, fds, _, _ = socket.recv_fds(channel, LONGEST_WORDS_BYTES, MOST_KEPT)
            except BlockingIOError:
                return
            except OSError:
                said, fds = b"", []
            self._hears = bool(said)
            if said:
                self._take(said.decode("ascii"), fds)

    def _take(self, said: str, fds: list[int]) -> None:
        word, *rest = said.split(" ")
        if word == "keep":
            self._let_go([*self._kept])
            for fd in fds:
                os.set_inheritable(fd, False)
            self._kept = dict(zip(rest, fds, strict=True))
        elif word == "serving":
            self._serves_since = time.monotonic()
        elif word == "over":
            self._over = int(rest[0])
            self._let_go([*self._kept])

    def _let_go(self, names: list[str]) -> None:
        for name in names:
            os.close(self._kept.pop(name))

    def _pass_on(self, number: int, _frame: object) -> None:
        try:
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            elif self._pid > 0:
                os.kill(self._pid, number)
            else:
                self._signals.append(number)
        except ProcessLookupError:
            self._signals.append(number)

    def _end_as(self, why: str) -> int:
        """End as the server has ended, which says more than any exit code to whoever waits."""
        number = getattr(signal, why.rpartition(" ")[2], None)
        if isinstance(number, signal.Signals):
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return int(why.rpartition(" ")[2]) if why.rpartition(" ")[2].isdecimal() else 1


def pidfd_of(pid: int) -> int:
    """A descriptor that is readable once the process has died; -1 where it has, or such descriptors are forbidden."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def is_over(pid: int) -> bool:
    """Whether a process will do nothing any more: it has ended, but for threads that hang in the kernel."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def gone(fuse: int) -> bool:
    """Whether the mount of a connection has ended: nobody can be served by it any more."""
    poll = select.poll()
    poll.register(fuse, select.POLLIN)
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))


def say(config: str, text: str) -> None:
    """Write a line to the log of the mount, which this process has not open as the server has."""
    import json
    import logging

    from mlfs.errors import MlfsError
    from mountd.log_file import formatter, open_log

    settings = json.loads(config)
    record = logging.makeLogRecord({"name": "mlfs.holder", "levelname": "ERROR", "levelno": 40, "msg": text})
    line = formatter(settings["log_format"]).format(record) + "\n"
    try:
        fd = open_log(settings["log_file"], settings["log_format"], 0) if settings["log_file"] else os.dup(2)
        os.write(fd, line.encode(errors="backslashreplace"))
        os.close(fd)
    except (MlfsError, OSError):
        os.write(2, line.encode(errors="backslashreplace"))
