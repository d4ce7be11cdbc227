"""The holder of one mount: it keeps what must outlive the server, starts the server, and starts it again when it dies.

In: the mount's config; from the server, by a socket, descriptors by name, and words. Out: a server that has what the
one before it left; the exit code of the mount. It is the process that `mlfs mount` starts, and it imports next to
nothing: what does little dies seldom. The first server is a fork of it, which loads all that a server needs, and then
forks the two processes that stand by; one of these waits until the server has died, forks the next one, and serves.

The kernel's requests wait while nobody serves, as long as somebody has the descriptor of /dev/fuse open. So no other
process may have it: a worker or reader that has it could never die while it waits for a server.

If the holder dies the server starts another one, and hands everything to it (mountd.left_behind.Holding). Then the
server is no child of its holder: nothing here needs it to be.

The server's words: `standby PID`, with the channel to the process that it has forked; `alone`, where it lacks threads:
it hears the same when nothing stands by any more; `keep NAME...`, with a descriptor each, in the place of all that was
kept before; `answers`, when it begins to answer what the one before it has left; `explained`, when it knows of which
request that one has died; `serving`, when it has answered all; `alive`, each second from then on; `renew`, with a
config in memory: servers to come have that, and load the code that is on the disk now; `way`, when it ends itself for
that; `over CODE`, when it ends by itself, or the mount has ended: nothing is kept any more. The process that stands by
hears `begin HOLDER RESTARTS HOLDER_RESTARTS STAND_BY NAME,... WHY`, with the descriptors, and says `begins`. STAND_BY
is how many others do. It also hears `fork`, as another one has died, and says `standby PID` like a server, or `none`.
Holder and server both keep the channels to what stands by, of which they tell each other (`standby PID`): so that
outlives either of them, and ends with both.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

# The form of all that is left: descriptors and their names, journal, places, reads, records of the RAM tier. A change
# of it counts on: a server of another form does not take over.
TABLES = 4
LONGEST_WORDS_BYTES = 4096
# Of them most are locks of disks' directories: beyond so many the next server has to lock them itself.
MOST_KEPT, MOST_LOCKS = 64, 48
# These signals are passed on to the server: it alone knows what they mean to a mount.
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
# A server that dies before it serves will do so again.
MOST_EARLY_DEATHS = 5
# After so many of them the next one begins with an empty RAM tier: the machine may lack that memory.
EARLY_DEATHS_WITH_MEMORY = 2
# So does one after so many that have served, and not for long: the kernel may kill each as soon as it needs some more.
DEATHS_WITH_MEMORY = 16
# One that dies so soon after it began to serve counts as one that dies at what it is asked for. So many in a row are no
# accident any more, and more than somebody who tries it out kills.
STEADY_S = 10.0
MOST_DEATHS = 50
# The first is followed at once. Later ones leave the machine some time: it may lack memory.
LONGEST_PAUSE_S = 1.0
# A server of which threads hang in the source ends without a sign that this could wait for. One that has said that it
# ends does so at once.
LOOK_MS, LOOK_SOON_MS = 1000, 10
# A server that has said nothing for so long is stopped, or its loop hangs. It is not replaced: it may go on, and two of
# them would answer the same requests.
HANGS_S = 10.0
# Where one that stands by has died, the other one forks the next, which takes some hundredths of a second. Where both
# have, one is loaded, which takes 0.4 s of a core, behind the start of a server and of its first readers. A machine
# that lacks memory kills it again: the pause between two such loads is twice that before.
STANDS_BY_AFTER_S, LONGEST_AFTER_S = 1.0, 16.0
# A server and a process that stands by may be killed at once. The other one is a fork as well, which costs little.
STAND_BY = 2
# One that is told to begin says so at once, or when it has loaded, which may take long on a busy machine. It is looked
# this often whether it is stopped: then another one has its turn.
LOOK_WHETHER_STOPPED_S, BEGINS_WITHIN_S = 0.1, 60.0
# Readers may go on asking, whom the end of the connection tells.
REFUSES_S = 1.0
# The threads of a process end one after the other, unless they hang.
THREADS_END_MS = 200
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_EXIT_CODE = 49  # in /proc/PID/stat, behind the name


class Start(NamedTuple):
    """The words and descriptors with which a server begins.

    Attributes:
        config: of the mount, as JSON. report_fd: where it tells `mlfs mount` how its start goes; -1: nobody asks.
        channel: to its holder. holder: that process, which may not be its parent. kept: descriptors by name, that the
            server before it has left; none for the first.
        restarts: how often a server was started again. why: how the one before it ended, in words.
        holder_restarts: how often the holder was. stand_by: how many processes stood by before this one began.
        forked: those that it has forked since.
    """

    config: str
    report_fd: int
    channel: socket.socket
    holder: int
    kept: Mapping[str, int]
    restarts: int = 0
    why: str = ""
    holder_restarts: int = 0
    stand_by: int = 0
    forked: Sequence[StandsBy] = ()


class StandsBy(NamedTuple):
    """A process that stands by, and a channel to it. In that process, as fork(2) has it: 0, and its own end."""

    pid: int
    channel: socket.socket


Serve = Callable[[Start], int]


class Child(NamedTuple):
    """A child of the holder, or the server whose holder has died: how to hear it, and how to see its end."""

    channel: socket.socket
    pid: int
    pidfd: int


class Deaths:
    """Judges whether a server that has died is started again, and after which pause.

    Attributes:
        restarts: how many were. early: deaths in a row before the server answered. in_a_row: of servers that were not
            steady.
    """

    def __init__(self, restarts: int = 0) -> None:
        self.restarts = restarts
        self.early = self.in_a_row = 0

    def pause_s(self, served_s: float | None) -> float | None:
        """The pause before the next start; None: no more of them. `served_s`: how long it has served, None: it did not
        come to that."""
        self.restarts += 1
        self.early = self.early + 1 if served_s is None else 0
        self.in_a_row = self.in_a_row + 1 if served_s is None or served_s < STEADY_S else 1
        if self.early >= MOST_EARLY_DEATHS or self.in_a_row > MOST_DEATHS:
            return None
        return min(LONGEST_PAUSE_S, 0.01 * 2.0 ** max(self.early, self.in_a_row // 4) - 0.01)

    def are_explained(self) -> None:
        """The request is known of which the last ones died, and is answered: so they come to an end."""
        self.in_a_row = 0


class MountHolder:
    """Keeps one server running.

    Args:
        config: of the mount, as JSON. load: loads what a server does, in a process of its own; that returns its exit
            code. report_fd: of the first server's reports. notify: the socket at which systemd hears that the mount
            serves; "" for none.
    """

    def __init__(self, config: str, load: Callable[[], Serve], report_fd: int = -1, notify: str = "") -> None:
        self._config = self._has_served = config
        self._makes_way = False
        self._notify = notify
        self._load = load
        self._report_fd = report_fd
        self._kept: dict[str, int] = {}
        self._deaths = Deaths()
        self._holder_restarts = 0
        self._server: Child | None = None
        self._stand_by_now: list[Child] = []
        self._forks: Child | None = None  # which of them was told to fork another one
        self._forks_at_s, self._loads_at_s, self._loads_again_s = 0.0, 0.0, STANDS_BY_AFTER_S
        self._serves_since: float | None = None
        self._answers = False  # what killed the servers before may be what this one is asked
        self._heard_s = self._hangs_since = 0.0
        self._over: int | None = None
        self._signals: list[int] = []  # that came while there was no server
        self._hears = True  # whether the server may still say something
        self._before: dict[int, Any] = {}  # what signals did before this passed them on

    def run(self) -> int:
        """Start the server, and hold until the mount has ended. Returns the exit code. A child ends by SystemExit."""
        self._pass_signals_on()
        self._start("")
        return self._hold()

    def go_on(self, server: int, channel: socket.socket, restarts: int, holder_restarts: int) -> int:
        """Hold what a server hands over whose holder has died. The rest is as in `run`."""
        self._pass_signals_on()
        self._deaths, self._holder_restarts = Deaths(restarts), holder_restarts
        self._server = Child(channel, server, pidfd_of(server))
        self._serves_since = self._heard_s = time.monotonic()
        return self._hold()

    def _pass_signals_on(self) -> None:
        for number in PASSED_ON:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # nohup
                self._before[number] = before
                signal.signal(number, self._pass_on)

    def _hold(self) -> int:
        while True:
            assert self._server is not None
            why = self._watch(self._server)
            if self._over is not None:
                return self._over
            if self._makes_way:
                why, self._makes_way = "made way for an upgrade", False
            served_s = None if self._serves_since is None else time.monotonic() - self._serves_since
            if "fuse" not in self._kept:  # it had not mounted yet, or no mount can be taken over here
                self._end_stand_by()
                return self._end_as(why)
            pause_s = self._deaths.pause_s(0.0 if served_s is None and self._answers else served_s)
            if pause_s is None:
                self._end_stand_by()
                said = f"the server {why}, and so did those before it: this mount is given up, and its reads fail"
                say(self._config, f"{said} (mlfs unmount takes it away)")
                refuse_all(self._kept["fuse"])
                return 1
            if self._deaths.early >= EARLY_DEATHS_WITH_MEMORY or self._deaths.in_a_row >= DEATHS_WITH_MEMORY:
                self._let_go([name for name in self._kept if name.startswith("ram")])
            if served_s is None and self._config != self._has_served:
                say(self._config, f"the server {why} before it served: the next one has the settings of before")
                self._config = self._has_served
                self._end_stand_by()
            time.sleep(pause_s)
            lacks = ""
            while not gone(self._kept["fuse"]):
                try:
                    self._start(why)
                    break
                except OSError as error:  # of fork(2): the machine lacks memory, or this user processes
                    if str(error.strerror) != lacks:
                        lacks = str(error.strerror)
                        say(self._config, f"no server can be started: {lacks}: requests wait until one can")
                    time.sleep(LONGEST_PAUSE_S)
            else:
                return 0

    def _start(self, why: str) -> None:
        """Have the process that stands by serve, or another one. Raises: OSError."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        counts = self._deaths.restarts, self._holder_restarts
        adopt(True)  # what is to stand by
        try:
            stands_by, holder = None, os.getpid()
            while self._stand_by_now and stands_by is None:
                stands_by = self._stand_by_now.pop(0)
                others = len(self._stand_by_now) + (stands_by is self._forks)
                numbers = f"{holder} {counts[0]} {counts[1]} {others}"
                words = f"begin {numbers} {','.join(self._kept)} {why}"
                begins, until_s = b"", time.monotonic() + BEGINS_WITHIN_S
                with suppress(OSError):
                    stands_by.channel.settimeout(LOOK_WHETHER_STOPPED_S)
                    socket.send_fds(stands_by.channel, [words.encode("ascii")], [*self._kept.values()])
                    while begins not in (b"begins", b"died") and time.monotonic() < until_s:
                        if is_stopped(stands_by):
                            break
                        begins = self._hear_what_stands_by(stands_by, LOOK_WHETHER_STOPPED_S)
                if begins != b"begins":  # it has died, perhaps with the server, or is stopped: it counts as none
                    self._end(stands_by)
                    stands_by = None

            def serve(channel: socket.socket) -> int:
                if not self._kept:  # one that takes over hears of signals once it can act on them
                    from mlfs.processes import end_with_parent

                    # As long as the mount does not serve, whoever ends the holder means both.
                    end_with_parent(signal.SIGKILL, holder)
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                start = Start(self._config, self._report_fd, channel, holder, self._kept, counts[0], why, counts[1])
                return self._serve_or_stand_by(channel, start)

            self._server = stands_by or self._fork(serve)
            for one in self._stand_by_now:
                self._tell_of(one)
            if self._report_fd >= 0:
                os.close(self._report_fd)  # the reports end when the server does
                self._report_fd = -1
            self._serves_since, self._hangs_since, self._answers = None, 0.0, False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signals, self._signals = self._signals, []
        for number in signals:
            self._pass_on(number, None)

    def _fork(self, does: Callable[[socket.socket], int]) -> Child:
        """Start a child, which does this and ends with its exit code. Signals are blocked. Raises: OSError."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            mine.close()
            theirs.close()
            raise
        if pid == 0:
            mine.close()
            # Ctrl-C in the terminal of a mount in the foreground is passed on, once. A process group in the session of
            # the holder would not do: where that dies while this process is stopped, the kernel sends it SIGHUP.
            os.setsid()
            for number, handler in self._before.items():
                signal.signal(number, handler)
            try:
                code = does(theirs)
            except OSError as error:  # who forks would take it for one of fork(2), and go on as another holder
                raise RuntimeError(f"this process cannot serve: {error}") from error
            raise SystemExit(code)
        theirs.close()
        return Child(mine, pid, pidfd_of(pid))

    def _have_one_stand_by(self, server: Child) -> None:
        """Have another one stand by, while the mount serves, where one that stood by has died."""
        one_forks = self._forks is not None
        for one in [*self._stand_by_now]:
            said = b"standby"
            while said in (b"standby", b"none"):
                said = self._hear_what_stands_by(one, 0)
            if said == b"died" or is_over(one):
                self._stand_by_now.remove(one)
                self._end(one)
        if self._forks not in self._stand_by_now:
            self._forks = None
        if one_forks and self._forks is None and self._serves_since is not None:
            adopt(False)
        if len(self._stand_by_now) >= STAND_BY or self._serves_since is None or "fuse" not in self._kept:
            return
        now_s = time.monotonic()
        able = [one for one in self._stand_by_now if not is_stopped(one)]
        if self._forks is not None or now_s < (self._forks_at_s if able else self._loads_at_s):
            return
        if able:
            self._forks, self._forks_at_s = able[0], now_s + STANDS_BY_AFTER_S
            adopt(True)
            with suppress(OSError):
                self._forks.channel.send(b"fork")
            return
        if now_s < self._serves_since + STANDS_BY_AFTER_S:
            return
        if now_s > self._loads_at_s + LONGEST_AFTER_S:
            self._loads_again_s = STANDS_BY_AFTER_S
        self._loads_at_s = now_s + self._loads_again_s
        self._loads_again_s = min(LONGEST_AFTER_S, 2 * self._loads_again_s)

        def stand_by(channel: socket.socket) -> int:
            server.channel.close()  # else the server would not see that the holder dies
            for fd in (*self._kept.values(), *([server.pidfd] if server.pidfd >= 0 else [])):
                os.close(fd)
            return self._serve_or_stand_by(channel, None)

        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            self._stand_by_now.append(self._fork(stand_by))
            self._tell_of(self._stand_by_now[-1])
        except OSError:
            return  # the machine lacks memory or processes: there is time
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _hear_what_stands_by(self, one: Child, within_s: float) -> bytes:
        """The next word of it, or `died`, or nothing within that time. A process that it has forked stands by, too."""
        one.channel.settimeout(within_s)
        try:
            said, fds, _, _ = socket.recv_fds(one.channel, LONGEST_WORDS_BYTES, 1)
        except (BlockingIOError, TimeoutError):
            return b""
        except OSError:
            return b"died"
        word, *rest = said.split(b" ")
        if word in (b"standby", b"none"):
            self._forks = None
        if fds:
            self._add(int(rest[0]), fds[0])
            self._tell_of(self._stand_by_now[-1])
        return word or b"died"

    def _add(self, pid: int, channel: int) -> None:
        self._stand_by_now.append(Child(socket.socket(fileno=channel), pid, pidfd_of(pid)))

    def _tell_of(self, stands_by: Child) -> None:
        """Have the server keep a channel to it as well."""
        if self._server is None:  # the next one is told of all
            return
        with suppress(OSError):  # it has died, or is stopped and does not hear: then the next one does without
            words, fds = b"standby %d" % stands_by.pid, [stands_by.channel.fileno()]
            socket.send_fds(self._server.channel, [words], fds, socket.MSG_DONTWAIT)

    def _serve_or_stand_by(self, channel: socket.socket, start: Start | None) -> int:
        """In a child: serve, or with None stand by and then serve; fork what stands by next before that."""
        load = cache(self._load if start is not None and not start.kept else self._load_anew)
        while True:
            start = start or self._stand_by(channel, load)
            if start is None:
                return 0
            channel, serve = start.channel, load()
            forked: list[StandsBy] = []
            for _ in range(start.stand_by, STAND_BY):
                one = fork_what_stands_by(channel)
                forked += [one] if one is not None else []
                if forked and not forked[-1].pid:
                    break
            else:
                return serve(start._replace(forked=forked))
            for fd in (*start.kept.values(), *([start.report_fd] if start.report_fd >= 0 else [])):
                os.close(fd)
            for ends in (channel, *(other.channel for other in forked[:-1])):
                ends.close()
            channel, start = forked[-1].channel, None

    def _load_anew(self) -> Serve:
        """Load what lies on the disk now, which may be newer than this process. Raises: OSError where it has other
        tables."""
        for name in [*sys.modules]:
            if name.partition(".")[0] in ("mlfs", "mountd"):
                del sys.modules[name]
        serve = self._load()
        if importlib.import_module("mountd.holder").TABLES != TABLES:
            raise OSError(errno.EPROTO, "mlfs on the disk cannot read what this mount leaves")
        return serve

    def _stand_by(self, channel: socket.socket, load: Callable[[], Serve]) -> Start | None:
        """Load, and wait until the server has died. None: the holder has as well."""
        from mlfs.processes import LOADED, OF_STAND_BY, be_killed_again_as, be_killed_sooner, name_of, name_this

        sooner_before = be_killed_sooner(OF_STAND_BY)
        load()
        before = name_of(os.getpid())
        name_this(LOADED)
        said, fds = _hear_as_stand_by(channel)
        while said == b"fork":
            forked = fork_what_stands_by(channel)
            if forked is None:
                with suppress(OSError):
                    channel.send(b"none")
            elif forked.pid:
                forked.channel.close()
            else:
                channel.close()
                channel = forked.channel
            said, fds = _hear_as_stand_by(channel)
        if not said:
            return None
        with suppress(OSError):
            channel.send(b"begins")
        be_killed_again_as(sooner_before)
        name_this(before)
        *numbers, names, why = said.decode("ascii").removeprefix("begin ").split(" ", 5)
        holder, restarts, holder_restarts, stand_by = map(int, numbers)
        kept = dict(zip(names.split(","), fds, strict=True))
        return Start(self._config, -1, channel, holder, kept, restarts, why, holder_restarts, stand_by)

    def _see_whether_it_hangs(self, server: Child) -> None:
        """Say once that the server hangs, and once that it goes on."""
        silent_s = time.monotonic() - self._heard_s
        if self._serves_since is not None and silent_s > HANGS_S and not self._hangs_since:
            self._hangs_since = self._heard_s
            hangs = f"the server (process {server.pid}) has said nothing for {silent_s:.0f} s: it is stopped, or hangs"
            say(self._config, f"{hangs}: requests wait until it goes on, or is killed")
        elif self._hangs_since and silent_s < HANGS_S:
            say(self._config, f"the server goes on after {self._heard_s - self._hangs_since:.0f} s")
            self._hangs_since = 0.0

    def _watch(self, server: Child) -> str:
        """Hear the server until it has died. Returns how it ended."""
        server.channel.setblocking(False)
        self._hears = True
        ends = [server.pidfd] if server.pidfd >= 0 else []
        while not is_over(server):
            ready = select.poll()
            hears = [server.channel] if self._hears else []
            for fd in (*ends, *(said.fileno() for said in (*hears, *(one.channel for one in self._stand_by_now)))):
                ready.register(fd, select.POLLIN)
            ready.poll(LOOK_MS if self._over is None else LOOK_SOON_MS)
            self._hear_all(server.channel)
            self._see_whether_it_hangs(server)
            self._have_one_stand_by(server)
        self._hear_all(server.channel)  # what it said before it died counts
        select.select(ends, [], [], THREADS_END_MS / 1000 if ends else 0)
        self._server = None
        return self._see_end(server)

    def _see_end(self, process: Child) -> str:
        """Let go of a process that has died. Returns how it ended."""
        process.channel.close()
        if process.pidfd >= 0:
            os.close(process.pidfd)
        ends_as = _exit_status_of(process)
        try:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = 0, 0
        if not pid:  # no child of this process, or threads of it hang in the source, or have not ended yet
            status = ends_as
        if not pid and not status:
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
            except ConnectionResetError:
                continue  # it has ended without hearing all; what it said before that is still to be heard
            except OSError:
                said, fds = b"", []
            self._hears = bool(said)
            if said:
                self._take(said.decode("ascii"), fds)

    def _take(self, said: str, fds: list[int]) -> None:
        word, *rest = said.split(" ")
        self._heard_s = time.monotonic()
        if word == "standby":
            self._add(int(rest[0]), fds[0])
        elif word == "alone" and self._server is not None:
            self._end_stand_by()
            with suppress(OSError):
                self._server.channel.send(b"alone")
        elif word == "keep":
            self._let_go([*self._kept])
            for fd in fds:
                os.set_inheritable(fd, False)
            self._kept = dict(zip(rest, fds, strict=True))
        elif word == "answers":
            self._answers = True
        elif word == "explained":
            self._deaths.are_explained()
        elif word == "serving":
            self._serves_since = time.monotonic()
            self._has_served = self._config
            adopt(False)  # what a server leaves besides is no affair of the holder's
            tell_systemd(self._notify, "READY=1")
            self._notify = ""
        elif word == "renew":
            with open(fds[0], "rb") as config:
                self._config = config.read().decode("ascii")
            self._end_stand_by()
            self._loads_at_s, self._loads_again_s = 0.0, STANDS_BY_AFTER_S  # no memory lacks: somebody waits for it
        elif word == "way":
            self._makes_way = True
        elif word == "over":
            self._over = int(rest[0])
            self._let_go([*self._kept])
            self._end_stand_by()

    def _end_stand_by(self) -> None:
        stand_by, self._stand_by_now, self._forks = self._stand_by_now, [], None
        for one in stand_by:  # it may still be loading
            self._end(one)

    def _end(self, stands_by: Child) -> None:
        with suppress(ProcessLookupError, ChildProcessError):
            send_signal(stands_by, signal.SIGKILL)
            os.waitpid(stands_by.pid, 0)
        if stands_by.pidfd >= 0:  # where another holder's server has forked it, it is no child of this one
            select.select([stands_by.pidfd], [], [], LONGEST_PAUSE_S)
        self._see_end(stands_by)

    def _let_go(self, names: list[str]) -> None:
        for name in names:
            os.close(self._kept.pop(name))

    def _pass_on(self, number: int, _frame: object) -> None:
        server = self._server
        try:
            if server is None:
                self._signals.append(number)
            else:
                send_signal(server, number)
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


def send_signal(process: Child, number: int) -> None:
    """Send a signal to no other process that has come by its number. Raises: ProcessLookupError."""
    if process.pidfd >= 0:
        signal.pidfd_send_signal(process.pidfd, number)
    else:
        os.kill(process.pid, number)


def fork_what_stands_by(holder: socket.socket) -> StandsBy | None:
    """Fork this process, which has loaded all that a server needs and has begun nothing, and tell the holder of it.

    The holder becomes its parent, as the process between them ends at once, unless it is another one's server that
    forks. Returns None where the machine lacks processes: then the holder has another one load all anew.
    """
    forked = None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with suppress(OSError):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            between = os.fork()
            if between == 0:
                with suppress(OSError):
                    if os.fork() == 0:
                        os.setsid()
                        theirs.send(b"%d" % os.getpid())
                        return StandsBy(0, theirs.dup())
                os._exit(0)
            os.waitpid(between, 0)
            theirs.close()
            if pid := mine.recv(LONGEST_WORDS_BYTES):
                forked = StandsBy(int(pid), mine.dup())
                socket.send_fds(holder, [b"standby " + pid], [mine.fileno()])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return forked


def adopt(orphans: bool) -> None:
    """Whether this process becomes the parent of descendants whose own parent ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def tell_systemd(address: str, state: str) -> None:
    """Tell the state of a service of type `notify`; see sd_notify(3). Nobody may be there to hear it."""
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            # A name that begins with @ is an abstract one, which has a null byte there.
            out.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        return


def pidfd_of(pid: int) -> int:
    """A descriptor that is readable once the process has died; -1 where it has, or such descriptors are forbidden."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def is_over(process: Child) -> bool:
    """Whether a process will do nothing any more: it has ended, but for threads that hang in the kernel.

    One that crashes waits for all of its threads before it ends, also where no core file is written, and a thread may
    wait in the mount for a reader who waits for the next server.
    """
    try:
        knows_us = os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        knows_us = False
    says = _status_of(process)
    # There is none of it, or this process may not see it, or lacks a descriptor; or /proc is another namespace's.
    if process.pidfd >= 0 and not (says and knows_us):
        return bool(select.select([process.pidfd], [], [], 0)[0])
    if not says:
        return True
    return any(words in says for words in (b"\nState:\tZ", b"\nState:\tX", b"\nCoreDumping:\t1"))


def is_stopped(process: Child) -> bool:
    """Whether a signal or a debugger has stopped it."""
    return any(words in _status_of(process) for words in (b"\nState:\tT", b"\nState:\tt"))


def _status_of(process: Child) -> bytes:
    with suppress(OSError), open(f"/proc/{process.pid}/status", "rb") as status:
        return status.read()
    return b""


def _hear_as_stand_by(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next words to it; none where holder and server are dead, also where they have not heard all that it said."""
    try:
        return socket.recv_fds(channel, LONGEST_WORDS_BYTES, MOST_KEPT)[:2]
    except ConnectionResetError:
        return b"", []


def _exit_status_of(process: Child) -> int:
    """The status that waitpid(2) will give of a process of which threads still run; 0 where nobody can tell."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{process.pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[_EXIT_CODE])
    return 0


def gone(fuse: int) -> bool:
    """Whether the mount of a connection has ended: nobody can be served by it any more."""
    poll = select.poll()
    poll.register(fuse, select.POLLIN)
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))


def refuse_all(fuse: int) -> None:
    """Answer all requests that wait with an error. A thread of a server that has crashed may wait for one of them: so
    long its process keeps the descriptor, and the kernel does not see that nobody serves any more."""
    from mountd import wire

    os.set_blocking(fuse, False)
    until_s = time.monotonic() + REFUSES_S
    with suppress(OSError):  # before Linux 6.9
        os.write(fuse, wire.RESEND)
    while time.monotonic() < until_s:
        try:
            kind, unique, *_ = wire.REQUEST.unpack_from(os.read(fuse, wire.LONGEST_REQUEST_BYTES))
            if kind not in wire.UNANSWERED:
                os.write(fuse, wire.error(unique, errno.EIO))
        except FileNotFoundError:  # who asked is gone
            continue
        except OSError:  # nothing waits any more, or the mount is gone
            return


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
