"""A mount outlives kill -9 of its processes: no read fails, no byte is wrong, jobs go on, and nothing is left."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing as mp
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.fuse import happened, wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource
from support.training import train
from support.trees import content, image_folder, make_tree

from mlfs.errors import ExitCode
from mlfs.processes import stat_fields
from mountd import wire
from mountd.holder import MOST_EARLY_DEATHS

READERS, KILLS = 6, 5
KILLED_IN_TRAINING, EPOCHS = 10, 7
LARGE = "large.bin"
# Loading the daemon takes a second on a busy machine; a reader who never got his answer would wait for ever.
LONGEST_WAIT_S = 20.0


# A kernel before 6.9, which does not know FUSE_NOTIFY_RESEND.
OLDER = f"""
import errno, os, platform
platform.release = lambda: "6.1.0-18-amd64"
real = os.write
def write(fd, data):
    if data == {wire.RESEND!r}:
        raise OSError(errno.EINVAL, "no notification")
    return real(fd, data)
os.write = write
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files: dict[str, Any] = {**image_folder(classes=4, files=40, size=30_000), LARGE: 9_000_000}
    return make_tree(tmp_path / "source", {name: content(name, size) for name, size in files.items()})


def processes(mount: MlfsMount) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in mount.status()["processes"]}


def standing_by(mount: MlfsMount) -> list[int]:
    return [one["pid"] for name, one in processes(mount).items() if name.startswith("standby")]


def kill_server(mount: MlfsMount, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill it, and wait until another one answers."""
    before = mount.pid
    os.kill(before, number)
    assert mount.pid != before


def read_at_random(path: str, want: dict[str, bytes], number: int, stop: Any, told: Any) -> None:
    """Read whole files, and ranges of the large one by a handle that stays open."""
    drawn, reads, failed, longest_s = random.Random(number), 0, [], 0.0
    large = os.open(f"{path}/{LARGE}", os.O_RDONLY)
    whole = Path(path, LARGE).read_bytes()
    while not stop.is_set():
        name, began = drawn.choice([*want]), time.monotonic()
        try:
            with open(f"{path}/{name}", "rb") as file:
                right = hashlib.sha1(file.read()).digest() == want[name]
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            at = drawn.randrange(len(whole) - 5000)
            os.posix_fadvise(large, 0, 0, os.POSIX_FADV_DONTNEED)
            right = right and os.pread(large, 5000, at) == whole[at : at + 5000]
            os.listdir(os.path.dirname(f"{path}/{name}"))
        except OSError as error:
            failed.append(f"{name}: {error}")
            continue
        longest_s = max(longest_s, time.monotonic() - began)
        reads += 1
        failed += [] if right else [f"{name}: wrong bytes"]
    told.put((reads, failed, longest_s))


@pytest.mark.parametrize(("kernel", "channel"), [("", "open"), (OLDER, "open"), (OLDER, "silent")])
@pytest.mark.promise("outlived")
def test_readers_outlive_servers_that_are_killed(source: Path, tmp_path: Path, kernel: str, channel: str) -> None:
    want = {str(file.relative_to(source)): hashlib.sha1(file.read_bytes()).digest() for file in source.rglob("*.jpg")}
    mount = MlfsMount(source, "--channel", channel)
    if kernel:
        (tmp_path / "sitecustomize.py").write_text(kernel)
        mount.extra_env = {"PYTHONPATH": str(tmp_path)}
    with mount:
        context = mp.get_context("fork")
        stop, told = context.Event(), context.Queue()
        readers = [
            context.Process(target=read_at_random, args=(str(mount.path), want, number, stop, told))
            for number in range(READERS)
        ]
        for reader in readers:
            reader.start()
        try:
            for number in range(KILLS):
                time.sleep(0.3)  # at whatever moment
                wait_until(lambda: "standby-1" in processes(mount))
                if number > 2:  # one that stands by at once with it
                    os.kill(processes(mount)[f"standby-{number % 2}"]["pid"], signal.SIGKILL)
                kill_server(mount, signal.SIGKILL if number % 2 == 0 else signal.SIGSEGV)
            stop.set()
            outcomes = [told.get(timeout=60) for _ in readers]
        finally:
            for reader in readers:
                reader.kill()
        assert [failed for _, failed, _ in outcomes] == [[]] * READERS
        assert min(reads for reads, _, _ in outcomes) > KILLS
        assert max(longest_s for _, _, longest_s in outcomes) < LONGEST_WAIT_S
        server = processes(mount)["server"]
        assert (server["pid"], server["why"]) == (mount.pid, "was killed by SIGKILL")
        assert server["restarts"] == KILLS


@pytest.mark.promise("outlived")
def test_requests_that_are_a_header_alone_wait_as_others_do(source: Path) -> None:
    (source / "link").symlink_to(LARGE)
    with MlfsMount(source) as mount:
        for command in (["stat", "-f", str(mount.path)], ["readlink", str(mount.path / "link")]):
            server = mount.pid
            # By then the kernel knows the name, and has sent the RELEASE of the status, which would come first.
            assert subprocess.run(command, capture_output=True, check=False).returncode == 0
            os.kill(server, signal.SIGSTOP)
            asks = subprocess.Popen(command, stdout=subprocess.PIPE)
            wait_until(lambda pid=asks.pid: ") S " in Path(f"/proc/{pid}/stat").read_text())
            os.kill(server, signal.SIGKILL)
            assert asks.wait(LONGEST_WAIT_S) == 0


def killed_in_order(mount: MlfsMount) -> list[str]:
    """The processes as the kernel is to kill them when memory is short."""
    files = {name: Path(f"/proc/{one['pid']}/oom_score_adj") for name, one in processes(mount).items()}
    return sorted(files, key=lambda name: -int(files[name].read_text()))


@pytest.fixture
def killed_soon() -> Iterator[None]:
    """As a desktop or a cluster starts it: the kernel is to kill it before others, and steps reach the end."""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text()
    own.write_text("200")
    yield
    own.write_text(before)


@pytest.mark.promise("outlived-holder")
@pytest.mark.usefixtures("killed_soon")
def test_a_holder_that_is_killed_is_followed_by_another_one(source: Path, tmp_path: Path) -> None:
    with MlfsMount(source, "--ram", "0", "--ssd", f"{tmp_path / 'disk'}:100M") as mount:
        with open(mount.path / LARGE, "rb") as held:
            for path in source.rglob("*.jpg"):
                assert (mount.path / path.relative_to(source)).read_bytes() == path.read_bytes()
            mount.settle()
            disk = mount.status()["tiers"][-1]
            assert disk["samples"] > 0
            for number in range(1, 3):
                server, holder = mount.pid, processes(mount)["holder"]
                wait_until(lambda: len(standing_by(mount)) == 2)
                stand_by = standing_by(mount)
                os.kill(server, signal.SIGSTOP)  # the kernel sends SIGHUP to a stopped group that is left alone
                wait_until(lambda stopped=server: stat_fields(stopped)[0] == b"T")
                os.kill(holder["pid"], signal.SIGKILL)
                wait_until(lambda before=holder["pid"]: before not in mount.pids())
                os.kill(server, signal.SIGCONT)
                wait_until(lambda before=holder["pid"]: processes(mount)["holder"]["pid"] != before)
                assert processes(mount)["holder"]["restarts"] == number
                assert (mount.pid, mount.status()["state"]) == (server, "serving")
                assert standing_by(mount) == stand_by  # or the next server would have to be loaded first
                order = ["standby-0", "standby-1", "server", "holder"]  # once the holder has loaded
                wait_until(lambda order=order: killed_in_order(mount) == order)
                held.seek(number * 3_000_000)
                assert held.read(10) == content_at(number)
                kill_server(mount)
                assert (mount.pid, processes(mount)["holder"]["restarts"]) == (stand_by[0], number)
                held.seek(number * 3_000_000 + 200_000)
                assert held.read(10) == content_at(number, 200_000)
            mount.settle()
            again = mount.status()["tiers"][-1]
            assert again["samples"] >= disk["samples"]  # each server has taken the directory of the one before it
        record = mount.run("ls", "--json").stdout
        assert str(mount.path) in record
        mount.unmount()
        wait_until(lambda: not mount.pids())


@pytest.mark.promise("outlived")
def test_files_that_have_changed_are_opened_by_the_next_server_of_one_that_crashed(tmp_path: Path) -> None:
    names = [f"{number}.bin" for number in range(4)]
    source = make_tree(tmp_path / "source", {f"d/{name}": b"old" * 1_000 for name in names})
    (tmp_path / "view").mkdir()
    with MlfsMount(source, "--source-timeout", "20s", mountpoint=tmp_path / "view") as mount:
        for name in names:
            assert (mount.path / "d" / name).exists()
            (source / "new").write_bytes(b"new" * 2_000)
            (source / "new").rename(source / "d" / name)
        server = mount.pid
        os.kill(server, signal.SIGSTOP)
        with ThreadPoolExecutor(len(names)) as readers:
            reads = [readers.submit((mount.path / "d" / name).read_bytes) for name in names]
            time.sleep(0.5)  # their requests are there by then; if not, there is less to be seen
            os.kill(server, signal.SIGCONT)
            os.kill(server, signal.SIGSEGV)
            began_s = time.monotonic()
            assert [read.result() for read in reads] == [b"new" * 2_000] * len(names)
            assert time.monotonic() - began_s < LONGEST_WAIT_S


FAILING = """
import os
readv, pread, failed = os.readv, os.pread, []
def fails(*arguments):
    for trigger in {triggers!r}:
        if not failed and os.path.exists(trigger):
            failed.append(trigger)
            os.unlink(trigger)
            raise RuntimeError("made up")
    return readv(*arguments)
def crashes(fd, *arguments):
    if os.readlink("/proc/self/fd/%d" % fd).endswith({bad!r}) and os.path.exists({bad_trigger!r}):
        os.abort()
    return pread(fd, *arguments)
os.readv, os.pread = fails, crashes
"""


@pytest.mark.usefixtures("own_interpreter")
@pytest.mark.promise("outlived", "outlived-crash")
def test_a_server_that_fails_is_followed_and_a_file_of_which_it_crashes_costs_no_other_read(
    source: Path, tmp_path: Path
) -> None:
    triggers, bad_trigger = [tmp_path / "first", tmp_path / "next"], tmp_path / "crashes"
    bad, *others = sorted(source.rglob("*.jpg"))
    bad_name, content_of_bad = f"/{bad.relative_to(source)}", bad.read_bytes()
    script = FAILING.format(triggers=[*map(str, triggers)], bad=bad_name, bad_trigger=str(bad_trigger))
    (tmp_path / "sitecustomize.py").write_text(script)
    mount = MlfsMount(source)
    mount.extra_env = {"PYTHONPATH": str(tmp_path)}
    with mount, open(mount.path / LARGE, "rb") as held:
        server = mount.pid
        for trigger in reversed(triggers):  # the next server fails before it serves
            trigger.touch()
        wait_until(lambda: mount.pid != server)
        held.seek(3_000_000)
        assert held.read(10) == content_at(1)
        assert processes(mount)["server"]["why"] == "ended with exit code 1"
        bad_trigger.touch()
        for _ in range(MOST_EARLY_DEATHS + 1):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                (mount.path / bad.relative_to(source)).read_bytes()
        for file in others:
            assert (mount.path / file.relative_to(source)).read_bytes() == file.read_bytes()
        now = mount.status()
        count = now["crashes"]["count"]  # who asks again after a second is believed once more
        assert count >= 1
        assert processes(mount)["server"]["restarts"] == 2 + 2 * count  # and no more of them
        assert now["crashes"]["last"]["path"] == str(bad.relative_to(source))
        failed = now["failed_reads"]["count"]
        assert failed > MOST_EARLY_DEATHS
        assert "servers crashed at a request" in mount.run("status", str(mount.path)).stdout
        kill_server(mount)
        assert mount.status()["failed_reads"]["count"] == failed
        bad_trigger.unlink()
        wait_until(lambda: reads(mount.path / bad.relative_to(source)) == content_of_bad)


def reads(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def content_at(number: int, behind: int = 0) -> bytes:
    return content(LARGE, 9_000_000)[number * 3_000_000 + behind :][:10]


def numbers(mount: MlfsMount) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (mount.path / "class01").iterdir()}


@pytest.mark.promise("outlived")
def test_what_was_noticed_and_refreshed_before_a_kill_is_so_behind_it(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", image_folder(classes=2, files=10, size=5_000))
    view = tmp_path / "view"
    view.mkdir()
    with MlfsMount(source, mountpoint=view, state=tmp_path / "state") as mount:
        first, second, *_ = sorted(numbers(mount))
        changed = view / "class01" / first
        with open(changed, "rb") as held, open(view / "class01" / second, "rb") as still:
            assert held.read() == (source / "class01" / first).read_bytes()
            before = changed.stat().st_ino
            (source / "class01" / first).write_bytes(b"new" * 3_000)
            mount.run("refresh", str(view))
            assert changed.read_bytes() == b"new" * 3_000
            was = (source / "class01" / second).read_bytes()
            assert changed.stat().st_ino != before
            assert still.read(10) == was[:10]
            still.seek(0)
            (source / "class01" / second).unlink()
            (source / "class01/00.jpg").write_bytes(b"came")
            mount.run("refresh", str(view))
            known = numbers(mount)
            kill_server(mount)
            assert numbers(mount) == known
            assert (view / "class01/00.jpg").read_bytes() == b"came"
            assert changed.read_bytes() == b"new" * 3_000
            assert os.fstat(held.fileno()).st_ino == before
            assert not (view / "class01" / second).exists()
            assert still.read() == was  # its pages are there
            (source / "class01" / first).write_bytes(b"newer" * 3_000)
            mount.run("refresh", str(view))
            assert changed.read_bytes() == b"newer" * 3_000
            assert changed.stat().st_ino not in {before, known[first]}


def kill_now_and_then(mount: MlfsMount, times: int, over: Any, told: Any) -> None:
    """Kill the server each time that some dozens of opens have come; tell how often that was."""
    killed = 0
    while killed < times:
        enough = mount.status()["opens"] + 30
        if not happened(lambda enough=enough: over.is_set() or mount.status()["opens"] > enough) or over.is_set():
            break
        kill_server(mount)
        killed += 1
    told.put(killed)


@pytest.mark.promise("outlived-jobs")
def test_a_training_is_not_told_that_its_server_was_killed(tmp_path: Path) -> None:
    backing = make_tree(tmp_path / "backing", image_folder(classes=5, files=200, size=4_000))
    how = {"ranks": 2, "workers": 2, "epochs": EPOCHS, "batch_size": 8, "seed": 5}
    wanted = train(backing, **how | {"workers": 0})
    context = mp.get_context("fork")  # and no thread beside it: a fork of the training might wait for its locks
    over, told = context.Event(), context.SimpleQueue()
    with SlowSource(backing, open_latency="0", bandwidth="0") as source, MlfsMount(source.path) as mount:
        flags = ["--sampler", "torch-distributed", "--seed", "5", "--epochs", str(EPOCHS), "--world-size", "2"]
        mount.run("register", str(mount.path), "--name", "train", *flags, "--batch-size", "8", "--num-workers", "2")
        killing = context.Process(target=kill_now_and_then, args=(mount, KILLED_IN_TRAINING, over, told))
        killing.start()
        try:
            seen = train(mount.path, **how)
        finally:
            over.set()
            killing.join()
        assert seen == wanted
        assert told.get() == KILLED_IN_TRAINING  # long before the job ends
        mount.settle()
        (job,) = mount.status()["jobs"]
        assert job["name"] == "train"
        # Of all eleven servers: each has counted what the one before it had answered and not counted.
        opens = sum(len(epoch) for rank in wanted for epoch in rank)
        assert (job["agreement"], job["observed_opens"]) == (1.0, opens), job
        # But where a reader who waited had his bytes from is lost if he had them in the last hundredths of a second.
        assert 0.98 < mount.status()["opens"] / opens <= 1.0
        by_epoch = [epoch["observed_opens"] for epoch in job["agreement_by_epoch"].values()]
        # The first read of a worker may count in the epoch before, if its sample is among the last ones there.
        assert sum(by_epoch) == opens
        assert max(abs(count - opens // EPOCHS) for count in by_epoch) <= KILLED_IN_TRAINING
        audited = json.loads(mount.run("audit", str(mount.path), "--json").stdout)
        assert (audited["forgotten"], audited["unknown"], audited["findings"]) == (0, 0, [])
        epochs = [epoch for one in audited["jobs"] for epoch in one["epochs"]]
        assert sum(epoch["reads"] for epoch in epochs) == opens, audited
        # Samples in RAM were not lost: read again is what was on its way there, each time.
        assert source.counts()["opens"] < 1.1 * len(wanted[0][0]) * len(wanted)


@pytest.mark.promise("outlived-jobs")
def test_a_job_that_was_found_is_expected_again_where_it_was(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", image_folder(classes=4, files=100, size=1_000))
    how = {"ranks": 1, "workers": 0, "epochs": 2, "batch_size": 8, "seed": 5}
    with MlfsMount(source, infer=True) as mount:
        train(mount.path, **how)
        mount.settle()
        wait_until(lambda: [job["inferred"] for job in mount.status()["jobs"]] == [True])
        (job,) = mount.status()["jobs"]
        kill_server(mount)
        train(mount.path, **how, first_epoch=2)
        mount.settle()
        (again,) = mount.status()["jobs"]
        assert (again["name"], again["spec"]["seed"]) == (job["name"], job["spec"]["seed"])
        assert again["inferred"]
        assert again["agreement"] > 0.98
        assert mount.status()["inference"]["searches"] == 0


@pytest.mark.promise("outlived-upgrade")
def test_a_mount_goes_on_with_other_settings_under_its_readers(source: Path) -> None:
    with MlfsMount(source, "--ram", "20M") as mount, open(mount.path / LARGE, "rb") as held:
        assert held.read() == content(LARGE, 9_000_000)
        mount.settle()
        (ram,) = mount.status()["tiers"]
        server, opens = mount.pid, mount.status()["opens"]
        assert ram["used_bytes"] > 5 << 20
        for wrong in ("--allow-other", "--calibration=/nowhere"):
            refused = mount.run("upgrade", str(mount.path), wrong, check=False)
            assert (refused.returncode, mount.pid) == (ExitCode.USAGE, server)
        with pytest.raises(OSError, match="Invalid argument"):
            mount.control({"op": "upgrade", "tables": 0, "config": "{}"})
        said = mount.run("upgrade", str(mount.path), "--ram", "5M").stdout
        assert said.startswith(f"{mount.path} is served by process {mount.pid} now, mlfs ")
        assert mount.pid != server
        mount.settle()
        (now,) = mount.status()["tiers"]
        assert now["capacity_bytes"] == 5 << 20
        assert 0 < now["used_bytes"] <= 5 << 20
        assert mount.status()["opens"] == opens
        held.seek(3_000_000)
        assert held.read(10) == content_at(1)
        kill_server(mount)
        assert mount.status()["tiers"][0]["capacity_bytes"] == 5 << 20
