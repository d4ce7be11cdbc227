"""The holder with servers that are made up: when it starts another one, when it gives up, what it loads for that."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from mountd import wire
from mountd.holder import (
    DEATHS_WITH_MEMORY,
    LONGEST_PAUSE_S,
    MOST_DEATHS,
    MOST_EARLY_DEATHS,
    STEADY_S,
    Deaths,
    refuse_all,
)
from mountd.left_behind import MOST_CRASHES, REFUSED_S, SLOT_BYTES, Asked, JobPlaces, Journal, Suspects, gives_again

SCRIPT = """
import os, signal, socket, sys, time
from mountd.holder import MountHolder
kept = socket.socketpair()
def serve(start):
    print("server", start.restarts, sorted(start.kept), start.why, flush=True)
    say = lambda words, *fds: socket.send_fds(start.channel, [words.encode()], fds)
    kill = lambda number=signal.SIGKILL: os.kill(os.getpid(), number)
    keep = lambda: say("keep fuse other", kept[0].fileno(), kept[1].fileno())
    {serve}
sys.exit(MountHolder(sys.argv[1], lambda: serve).run())
"""


def held(tmp_path: Path, serve: str, script: str = SCRIPT) -> tuple[int, list[str], str]:
    """The exit code of the holder, what its servers print, and the log."""
    log = tmp_path / "log"
    config = json.dumps({"log_file": str(log), "log_format": "text"})
    words = [sys.executable, "-c", script.replace("{serve}", serve), config]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines(), log.read_text() if log.exists() else ""


def test_a_server_that_dies_after_it_has_mounted_is_followed_by_one_that_has_what_it_left(tmp_path: Path) -> None:
    code, printed, log = held(
        tmp_path,
        "if start.restarts < 2: keep(); say('serving'); kill(signal.SIGKILL if start.restarts else signal.SIGSEGV)\n"
        "    say('over 7'); return 7",
    )
    assert printed == [
        "server 0 [] ",
        "server 1 ['fuse', 'other'] was killed by SIGSEGV",
        "server 2 ['fuse', 'other'] was killed by SIGKILL",
    ]
    assert (code, log) == (7, "")


LOADS = """
import mountd.holder
mountd.holder.STANDS_BY_AFTER_S, mountd.holder.LOOK_MS = 0.0, 10
loads = lambda: open(LOADED).read().split()
def those_that_stand_by():
    children = open("/proc/%d/task/%d/children" % (2 * (os.getppid(),))).read().split()
    return [int(pid) for pid in children if int(pid) != os.getpid()]
def load():
    print(os.getpid(), file=open(LOADED, "a"))
    return serve
"""


def script_that_tells_of_loads(loaded: Path, load: str = LOADS) -> str:
    """The script, where each process that loads the server writes its number there."""
    load = load.replace("LOADED", repr(str(loaded)))
    return SCRIPT.replace("def serve", load + "def serve").replace("lambda: serve", "load")


def test_what_stands_by_has_loaded_before_the_server_dies_and_begins_with_what_that_left(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    code, printed, log = held(
        tmp_path,
        "kept and keep(); say('serving')\n"
        "    if start.restarts < 5: kill()\n"
        "    print(len(loads()), os.path.sameopenfile(start.kept['fuse'], kept[0].fileno()))\n"
        "    say('over 7'); return 7",
        script_that_tells_of_loads(loaded),
    )
    assert printed[1:] == [
        *[f"server {number} ['fuse', 'other'] was killed by SIGKILL" for number in range(1, 6)], "1 True"
    ]  # fmt: skip
    assert (code, log) == (7, "")


def test_a_server_and_those_that_stand_by_are_killed_at_once_which_counts_once(tmp_path: Path) -> None:
    code, printed, _ = held(
        tmp_path,
        "keep(); say('serving')\n"
        "    if start.restarts < 2:\n"
        "        stand_by = those_that_stand_by(); print(len(stand_by), flush=True)\n"
        "        [os.kill(pid, signal.SIGKILL) for pid in stand_by[: 1 + start.restarts]]; kill()\n"
        "    print(len(loads())); say('over 7'); return 7",
        # Nothing is loaded while a server runs.
        script_that_tells_of_loads(tmp_path / "loaded").replace("LOOK_MS = 0.0", "LOOK_MS = 60.0"),
    )
    begun = [f"server {number} ['fuse', 'other'] was killed by SIGKILL" for number in (1, 2)]
    assert (code, printed) == (7, ["server 0 [] ", "2", begun[0], "2", begun[1], "2"])  # another one was loaded at last


def test_of_those_that_stand_by_a_stopped_one_is_passed_over(tmp_path: Path) -> None:
    code, printed, _ = held(
        tmp_path,
        "keep(); say('serving')\n"
        "    if not start.restarts:\n"
        "        stopped, other = sorted(those_that_stand_by()); print(other, flush=True)\n"
        "        os.kill(stopped, signal.SIGSTOP); kill()\n"
        "    print(os.getpid()); say('over 7'); return 7",
        script_that_tells_of_loads(tmp_path / "loaded"),
    )
    assert (code, printed[2:]) == (7, ["server 1 ['fuse', 'other'] was killed by SIGKILL", printed[1]])


def test_of_those_that_stand_by_one_that_is_killed_is_forked_anew_and_both_are_loaded(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    code, printed, _ = held(
        tmp_path,
        "keep(); say('serving')\n"
        "    if not start.restarts:\n"
        "        first, other = stand_by = sorted(those_that_stand_by())\n"
        "        os.kill(first, signal.SIGKILL)\n"
        "        while len(stand_by) < 2 or first in stand_by: stand_by = those_that_stand_by()\n"
        "        print(len(loads()), flush=True)\n"
        # Stopped first: once one was killed, the other one would be told to fork.
        "        [os.kill(pid, how) for how in (signal.SIGSTOP, signal.SIGKILL) for pid in stand_by]\n"
        "        while len(loads()) < 2: time.sleep(0.01)\n"
        "        kill()\n"
        "    anew = sys.modules['mountd.holder'] is not mountd.holder  # as the disk may have other code by now\n"
        "    print(loads().index(str(os.getpid())), anew); say('over 7'); return 7",
        script_that_tells_of_loads(loaded),
    )
    assert (code, printed[1:]) == (7, ["1", "server 1 ['fuse', 'other'] was killed by SIGKILL", "1 True"])
    assert all(not Path("/proc", pid).exists() for pid in loaded.read_text().split())


def test_what_cannot_stand_by_ends_and_is_no_other_holder(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    load = LOADS.replace(
        "    return serve",
        "    if len(loads()) == 2: sys.stderr = open(os.devnull, 'w'); raise OSError(5, 'no such module any more')\n"
        "    return serve",
    )
    code, printed, log = held(
        tmp_path,
        "if start.restarts == 0:\n"
        "        keep(); say('serving')\n"
        "        fd = os.memfd_create('config'); os.pwrite(fd, start.config.encode(), 0); say('renew', fd)\n"
        "        while len(loads()) < 2 or os.path.exists('/proc/' + loads()[1]): time.sleep(0.01)\n"
        "        kill()\n"
        "    say('over 7'); return 7",
        script_that_tells_of_loads(loaded, load),
    )
    assert printed[1:] == ["server 1 ['fuse', 'other'] was killed by SIGKILL"]
    assert (code, log) == (7, "")
    assert len(loaded.read_text().split()) >= 3  # the server, what failed, and who came next


def test_upgrades_that_follow_each_other_wait_for_no_pause(tmp_path: Path) -> None:
    code, printed, _ = held(
        tmp_path,
        "keep(); say('serving')\n"
        "    for number in range(6):\n"
        "        fd = os.memfd_create('config'); os.pwrite(fd, start.config.encode(), 0); say('renew', fd)\n"
        "        began_s = time.monotonic()\n"
        "        while len(loads()) < 2 + number: time.sleep(0.005)\n"
        "    print(time.monotonic() - began_s < 1.5); say('over 7'); return 7",
        # So the last one would wait for three seconds if memory were lacking.
        script_that_tells_of_loads(tmp_path / "loaded").replace("LOOK_MS = 0.0", "LOOK_MS = 0.1"),
    )
    assert (code, printed[1:]) == (7, ["True"])


def test_settings_with_which_no_server_begins_are_given_up_for_those_of_before(tmp_path: Path) -> None:
    code, printed, log = held(
        tmp_path,
        "if start.restarts == 0:\n"
        "        fd = os.memfd_create('config'); os.write(fd, start.config.replace('text', 'json').encode())\n"
        "        keep(); say('serving'); os.lseek(fd, 0, 0); say('renew', fd); say('way'); kill()\n"
        "    if 'json' in start.config: return 2\n"
        "    say('over 0'); return 0",
    )
    assert printed[1:] == [
        "server 1 ['fuse', 'other'] made way for an upgrade",
        "server 2 ['fuse', 'other'] ended with exit code 2",
    ]
    assert code == 0
    assert "ended with exit code 2 before it served: the next one has the settings of before" in log


@pytest.mark.parametrize("word", ["serving", "answers"])  # what it is asked then may be what kills it
def test_servers_that_die_one_after_the_other_leave_no_samples_in_memory_any_more(tmp_path: Path, word: str) -> None:
    code, printed, _ = held(
        tmp_path,
        f"if start.restarts > {DEATHS_WITH_MEMORY}: say('over 7'); return 7\n"
        "    say('keep fuse ram0', kept[0].fileno(), kept[1].fileno());"
        f" say('serving' if not start.restarts else {word!r}); kill()",
    )
    kept = [re.sub(r"server \d+ (.*\]).*", r"\1", line) for line in printed[1:]]
    assert (code, kept) == (7, ["['fuse', 'ram0']"] * (DEATHS_WITH_MEMORY - 1) + ["['fuse']"] * 2)


def test_deaths_of_which_the_request_was_found_are_no_reason_to_give_a_mount_up(tmp_path: Path) -> None:
    code, printed, _ = held(
        tmp_path,
        "start.kept or keep(); say('serving'); start.restarts % 2 or say('explained')\n"
        "    if start.restarts < 4: kill()\n    say('over 7'); return 7",
        SCRIPT.replace("def serve", "import mountd.holder as h\nh.MOST_DEATHS = 2\ndef serve"),
    )
    assert (code, len(printed)) == (7, 5)


@pytest.mark.promise("outlived-given-up")
def test_servers_that_die_before_they_answer_are_given_up_with_a_last_word(tmp_path: Path) -> None:
    code, printed, log = held(tmp_path, "start.kept or keep(); kill()")
    assert (code, len(printed)) == (1, MOST_EARLY_DEATHS)
    assert "ERROR mlfs.holder: the server was killed by SIGKILL, and so did those before it: this mount is" in log


@pytest.mark.parametrize(
    ("serve", "code"), [("kill()", -signal.SIGKILL), ("kill(signal.SIGTERM)", -signal.SIGTERM), ("return 3", 3)]
)
def test_a_server_that_has_left_nothing_is_not_followed(tmp_path: Path, serve: str, code: int) -> None:
    assert held(tmp_path, serve)[::2] == (code, "")


def test_a_signal_is_passed_on_to_the_server_and_waits_for_it_where_there_is_none(tmp_path: Path) -> None:
    code, printed, _ = held(
        tmp_path,
        "if not start.restarts: keep(); kill()\n"
        "    os.kill(os.getppid(), signal.SIGTERM); print(signal.Signals(signal.sigwait([signal.SIGTERM])).name)\n"
        "    say('over 0'); return 0",
    )
    assert (code, printed[-1]) == (0, "SIGTERM")


def test_a_server_that_says_nothing_is_told_of_and_not_replaced(tmp_path: Path) -> None:
    code, printed, log = held(
        tmp_path,
        "keep(); say('serving'); time.sleep(1.0); say('alive'); time.sleep(0.3); say('over 0'); return 0",
        SCRIPT.replace("def serve", "import mountd.holder as h\nh.HANGS_S, h.LOOK_MS = 0.5, 50\ndef serve"),
    )
    assert (code, printed) == (0, ["server 0 [] "])
    assert [log.count(words) for words in ("has said nothing for", "goes on after")] == [1, 1]


def test_pauses_become_longer_and_deaths_come_to_an_end() -> None:
    deaths = Deaths()
    assert [deaths.pause_s(STEADY_S + 1) for _ in range(2 * MOST_DEATHS)] == [0.0] * 2 * MOST_DEATHS
    pauses = [deaths.pause_s(0.5) for _ in range(MOST_DEATHS)]
    assert pauses[-1] is None
    said = [pause for pause in pauses if pause is not None]
    assert said == sorted(said)
    assert (said[0], said[-1]) == (0.0, LONGEST_PAUSE_S)


def test_a_machine_that_lacks_processes_is_asked_again_after_a_pause_and_its_mount_is_not_given_up(
    tmp_path: Path,
) -> None:
    lacking = (
        "forks = iter([False, *[True] * 20, False])\n"
        "def fork(real=os.fork):\n"
        "    if next(forks, False): raise BlockingIOError(11, 'lacking')\n"
        "    return real()\n"
        "os.fork, time.sleep = fork, lambda pause_s: print(pause_s, flush=True)\n"
    )
    script = SCRIPT.replace("def serve", lacking + "def serve")
    code, printed, log = held(
        tmp_path,
        "if not start.restarts: keep(); say('serving'); kill()\n    say('over 7'); return 7",
        script,
    )
    assert (code, printed[1:-1]) == (7, ["0.0", *[str(LONGEST_PAUSE_S)] * 20])
    assert printed[-1] == "server 1 ['fuse', 'other'] was killed by SIGKILL"
    assert log.count("no server can be started: lacking") == 1


def test_who_waits_for_a_mount_that_is_given_up_gets_an_error() -> None:
    ours, kernels = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, kernels:
        for unique, kind in ((2, wire.OPEN), (4, wire.FORGET), (6, wire.GETATTR)):
            kernels.send(struct.pack("<IIQQIIIHH", 80, kind, unique, 7, 0, 0, 1, 0, 0) + bytes(40))
        refuse_all(ours.fileno())
        kernels.setblocking(False)
        assert kernels.recv(100) == wire.RESEND
        assert [kernels.recv(100) for _ in range(2)] == [wire.error(unique, errno.EIO) for unique in (2, 6)]
        with pytest.raises(BlockingIOError):
            kernels.recv(100)


def test_it_loads_next_to_nothing() -> None:
    script = "import mountd.holder, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "trio", "pyfuse3", "pydantic", "json", "logging", "subprocess", "ctypes", "mlfs"} & {*loaded}


# -- what a server leaves


def test_a_journal_gives_back_its_facts_and_leaves_out_what_is_torn() -> None:
    journal = Journal()
    facts = [("mount", [1, "a\nb"]), ("jobs", {"train": "{}"}), ("change", [7, None])]
    for kind, value in facts:
        journal.note(kind, value)
    assert [*Journal(journal.fd).facts()] == facts
    os.ftruncate(journal.fd, os.fstat(journal.fd).st_size - 3)
    again = Journal(journal.fd)
    assert [*again.facts()] == facts[:2]
    again.note("commands", "/run")
    assert [*Journal(journal.fd).facts()] == [*facts[:2], ("commands", "/run")]
    os.close(journal.fd)


def test_a_fact_that_was_written_in_part_does_not_hide_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    journal.note("mount", 1)
    with monkeypatch.context() as short:
        write = os.pwrite
        short.setattr(os, "pwrite", lambda fd, line, at: write(fd, line[:-5], at))
        journal.note("change", "x" * 100)
    journal.note("commands", "/run")
    assert [*Journal(journal.fd).facts()] == [("mount", 1), ("commands", "/run")]
    os.close(journal.fd)


def test_of_places_the_last_whole_one_counts() -> None:
    places = JobPlaces()
    assert places.read() == (None, None)
    for number in range(1, 4):
        places.write({"train": number}, f"[{number}]")
    places.write("x" * SLOT_BYTES)  # too long
    assert JobPlaces(places.fd).read() == ({"train": 3}, [3])
    os.pwrite(places.fd, b"torn", 3 % 2 * SLOT_BYTES)
    again = JobPlaces(places.fd)
    assert again.read() == ({"train": 2}, [2])
    again.write({"train": 4}, f'"{SLOT_BYTES * "x"}"')
    assert JobPlaces(places.fd).read() == ({"train": 4}, None)
    os.close(places.fd)


def test_a_request_of_which_servers_crash_is_found_and_one_that_was_under_way_is_not() -> None:
    journal = Journal()
    crashed = "was killed by SIGSEGV"
    assert Suspects(journal, "was killed by SIGKILL").given_again([1, 2, 3]) == ([], [])
    second = Suspects(journal, "was killed by SIGKILL")
    assert second.given_again([2, 4]) == ([2], [])  # again: it may be the death of both
    third = Suspects(journal, crashed)
    assert third.given_again([5, 6, 7]) == ([5, 6, 7], [])
    third.begins(5)
    third.is_answered()
    third.begins(6)
    fourth = Suspects(journal, crashed)
    assert fourth.given_again([6, 7, 8]) == ([7, 8], [6])
    fourth.begins(7)
    fourth.is_answered()
    assert Suspects(journal, crashed).given_again([8, 9]) == ([8, 9], [])
    os.close(journal.fd)


def test_a_request_that_the_source_answers_late_outlives_kills_of_the_servers_that_answer_it_alone() -> None:
    journal = Journal()
    for kills in range(DEATHS_WITH_MEMORY + 3):
        suspects = Suspects(journal, "was killed by SIGKILL")
        alone, guilty = suspects.given_again([1])
        # It is alone from the second server on. So many kills in a row may be the kernel's, for want of memory.
        assert (alone, guilty) == (([], [1]) if kills == DEATHS_WITH_MEMORY + 2 else ([1][:kills], []))
        if alone:
            suspects.begins(1)
    os.close(journal.fd)


def test_a_server_that_comes_after_many_crashes_fetches_nothing_ahead_for_a_while() -> None:
    journal, waits_s, said = Journal(), [], list[str]()

    async def wait(why: str) -> None:
        suspects, began_s = Suspects(journal, why), trio.current_time()
        suspects.are_judged.set()
        await suspects.may_fetch_ahead()
        waits_s.append(trio.current_time() - began_s)

    for why in [*["was killed by SIGKILL"] * MOST_CRASHES, *["was killed by SIGSEGV"] * MOST_CRASHES]:
        trio.run(wait, why, clock=trio.testing.MockClock(autojump_threshold=0))
    assert waits_s == [0.0] * (2 * MOST_CRASHES - 1) + [REFUSED_S]
    suspects = Suspects(journal, "was killed by SIGSEGV", said.append)
    suspects.refuse(Asked(wire.READ, 7, 0))  # of one of them the request was found: the others are those before it
    assert said == ["explained"]
    trio.run(wait, "was killed by SIGSEGV", clock=trio.testing.MockClock(autojump_threshold=0))
    assert waits_s[-1] == 0.0
    os.close(journal.fd)


def test_what_servers_die_of_is_refused_for_longer_each_time_but_not_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, asked, now_s = Journal(), Asked(wire.READ, 7, 0), 1000.0
    monkeypatch.setattr("mountd.left_behind.time.monotonic", lambda: now_s)
    for refused_s in (1, 2, 4, 8, 16, REFUSED_S, REFUSED_S):
        Suspects(journal, "was killed by SIGSEGV").refuse(asked)
        suspects = Suspects(journal, "was killed by SIGKILL")
        assert not suspects.refuses(asked._replace(offset=4096))
        now_s += refused_s - 0.1
        assert suspects.refuses(asked)
        now_s += 0.2
        assert not suspects.refuses(asked)
    os.close(journal.fd)


def test_it_is_known_which_kernels_give_requests_again() -> None:
    assert gives_again("6.9.0-amd64")
    assert gives_again("7.0")
    assert not gives_again("6.8.12")
    assert not gives_again("5.15.0-91-generic")
