"""`mlfs warmup` on a real mount: what it reads of the source, in which order, and what it says in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

pytestmark = pytest.mark.page_counts

FILES, FILE_BYTES, PAGE = 60, 20_000, 4096
FOOTPRINT = -(-FILE_BYTES // PAGE) * PAGE
SMALL = ["--staging", "1M", "--pfs-threads", "4"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
    for number in range(FILES):
        (root / ("cat", "dog")[number % 2] / f"{number:03d}.npy").write_bytes(os.urandom(FILE_BYTES))
    return root


def fast(source: Path) -> SlowSource:
    return SlowSource(source, open_latency="0ms", bandwidth="1G")


def names(root: Path) -> list[str]:
    return sorted(f"{path.parent.name}/{path.name}" for path in root.glob("*/*"))


def compare(source: Path, mount: MlfsMount) -> None:
    for name in names(source):
        assert (mount.path / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.promise("warmup")
def test_the_source_is_read_once_in_all(source: Path, tmp_path: Path) -> None:
    with fast(source) as slow, MlfsMount(slow.path, "--ram", "8M", "--ssd", f"{tmp_path}/ssd:8M", *SMALL) as mount:
        said = mount.run("warmup", str(mount.path), "dog")
        assert "30 samples (585.9 KiB) of 30 samples (585.9 KiB) are in the caches: 0 samples (0 B)" in said.stdout
        assert sorted(slow.counts()["by_path"]) == [name for name in names(source) if name.startswith("dog")]
        said = mount.run("warmup", str(mount.path))
        assert "30 samples (585.9 KiB) were there, 30 samples (585.9 KiB) were read from the source" in said.stdout
        assert "have no room" not in said.stdout
        compare(source, mount)
        assert set(slow.counts()["by_path"].values()) == {1}
        assert len(slow.counts()["by_path"]) == FILES


def refused(mount: MlfsMount) -> None:
    """What cannot be is refused in one line."""
    wrong = {
        ("cat/none.npy",): "paths: there is no 'cat/none.npy' in the mount",
        ("/etc",): "/etc is not inside",
        ("--job", "nobody"): "job: no job 'nobody' is registered",
        ("--epochs", "0"): "--epochs is given without --job",
        ("--job", "x", "--epochs", "2-1"): "--epochs '2-1' cannot be used",
    }
    for words, said in wrong.items():
        done = mount.run("warmup", str(mount.path), *words, check=False)
        assert done.returncode in (2, 9)
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_it_stops_when_the_caches_are_full(source: Path) -> None:
    with fast(source) as slow, MlfsMount(slow.path, "--ram", str(20 * FOOTPRINT), *SMALL) as mount:
        said = mount.run("warmup", str(mount.path))
        assert "20 samples" in said.stdout
        assert "40 samples (781.2 KiB) have no room: the caches are full" in said.stdout
        assert slow.counts()["opens"] == 20
        assert sorted(slow.counts()["by_path"]) == names(source)[:20]  # in the order of the tree
        mount.run("warmup", str(mount.path))
        assert slow.counts()["opens"] == 20  # what is kept stays
        refused(mount)
        compare(source, mount)


def test_a_job_gets_what_it_reads_first(source: Path) -> None:
    """Also when its window is full of what it reads first, and it has not begun to read."""
    flags = ["--ram", str(20 * FOOTPRINT), "--staging", "1M", "--pfs-threads", "4"]
    with fast(source) as slow, MlfsMount(slow.path, *flags) as mount:
        mount.register(name="train", seed=3, epochs=2, batch_size=4, layout="sorted", world_size=2, ranks=[0, 1])
        mount.run("warmup", str(mount.path), "--job", "train", "--epochs", "0")
        mount.settle()
        order = [(mount.path / f".mlfs/order/train/0/{rank}").read_text().splitlines() for rank in (0, 1)]
        first = {name for pair in list(zip(*order, strict=True))[:10] for name in pair}
        kept = slow.counts()["by_path"]
        assert sum(tier["samples"] for tier in mount.status()["tiers"]) == 20
        assert first <= set(kept)
        twice = [name for name, opens in kept.items() if opens > 1]  # by the window and by the warm-up
        assert not twice or mount.status()["pages"]["taken_back"], twice  # where the machine takes pages back, again


@pytest.mark.wall_clock
def test_ctrl_c_ends_it_and_it_goes_on_where_it_was(source: Path) -> None:
    with SlowSource(source, open_latency="60ms") as slow, MlfsMount(slow.path, "--ram", "8M", *SMALL) as mount:
        command = [sys.executable, "-m", "mlfs.cli.main", "warmup", str(mount.path)]
        warming = subprocess.Popen(command, env=mount.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: slow.counts()["opens"] >= 8)
        [said] = [message for message in mount.status()["messages"] if "mlfs warmup" in message]
        assert f"of {FILES} samples" in said
        warming.send_signal(signal.SIGINT)
        out, err = warming.communicate(timeout=60)
        assert warming.returncode == 130, err
        assert "are in the caches" in out
        assert "interrupted; run it again to go on" in err
        assert "Traceback" not in err
        mount.settle()
        before = slow.counts()["opens"]
        assert mount.status()["warming"]["state"] == "stopped"
        assert 8 <= before < FILES
        time.sleep(0.3)
        assert slow.counts()["opens"] == before
        warming = subprocess.Popen(command, env=mount.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: slow.counts()["opens"] > before)
        os.kill(mount.pid, signal.SIGKILL)
        slow.control(latency_s=0)
        assert warming.communicate(timeout=60)[0].startswith(f"{mount.path}: {FILES} samples")
        assert warming.returncode == 0
        assert len(slow.counts()["by_path"]) == FILES
        assert slow.counts()["opens"] <= FILES + 4  # what the threads were at when the server was killed, again


def test_a_reader_beside_it_gets_right_bytes_and_what_fails_is_told(source: Path) -> None:
    with SlowSource(source, open_latency="5ms") as slow, MlfsMount(slow.path, "--ram", "8M", *SMALL) as mount:
        slow.control(fail={"path": "dog/059.npy", "errno": 5, "times": 1})
        command = [sys.executable, "-m", "mlfs.cli.main", "warmup", str(mount.path)]
        warming = subprocess.Popen(command, env=mount.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: mount.status()["warming"]["run"] == 1)
        for name in reversed(names(source)[:-1]):
            assert (mount.path / name).read_bytes() == (source / name).read_bytes()
        out, err = warming.communicate(timeout=60)
        assert warming.returncode == 1, err
        assert "1 samples (19.5 KiB) could not be read or written" in out
        compare(source, mount)
        assert max(slow.counts()["by_path"].values()) <= 2
