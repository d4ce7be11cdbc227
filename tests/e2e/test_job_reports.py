"""`mlfs mount --report DIR`: a page whenever a job ends, however it ends, over nothing that is not a report."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

from mlfs.report import MARK


def test_a_page_is_written_however_a_job_ends(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "reports"
    source.mkdir()
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for number in range(20):
        (source / f"{number:02d}.npy").write_bytes(os.urandom(2000))
    finished = "finished", 20
    unregistered = "unregistered", 7
    with_the_mount = "with-the-mount", 5
    flags = ["--ram", "8M", "--pfs-threads", "1", "--report", str(out)]
    with SlowSource(source, open_latency="20ms") as slow, MlfsMount(slow.path, *flags) as mount:
        for name, files in (finished, unregistered, with_the_mount):
            mount.register(name=name, seed=1, epochs=1, batch_size=2, layout="sorted")
            for path in (mount.path / f".mlfs/order/{name}/0/0").read_text().splitlines()[:files]:
                (mount.path / path).read_bytes()
            mount.settle()
            if name == "finished":
                [rank] = mount.status()["jobs"][0]["ranks"]
                assert 0.1 < rank["waited_s"] == pytest.approx(mount.status()["stalls"]["total_s"], abs=0.05)
                wait_until(lambda: bool(list(out.glob("finished-*.html"))))
                assert [job["samples"] for job in mount.status()["audit"]["jobs"]] == [20], "nobody has asked for it"
            if name != "with-the-mount":
                mount.run("unregister", str(mount.path), name)
        mount.register(name="nothing-was-read", seed=2, epochs=1, layout="sorted")
    pages = sorted(out.glob("*.html"))
    assert [page.name.rsplit("-", 2)[0] for page in pages] == ["finished", "unregistered", "with-the-mount"]
    for page in pages:
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        text = page.read_text()
        assert text.startswith(MARK)
        assert f"<h2>Job {page.name.rsplit('-', 2)[0]}: " in text
    assert "20 samples were read by one rank" in pages[0].read_text()
    assert len(os.listdir(out)) == 4  # nothing half written
    assert (out / "notes.txt").read_text() == "mine"


def test_what_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.npy").write_text("a")
    mount = MlfsMount(source)
    try:
        for path, said in ((source / "a.npy", "is inside the source"), (tmp_path / "none", "is no directory")):
            done = mount.run("mount", str(source), "--report", str(path), check=False)
            assert done.returncode == 2
            assert said in done.stderr
    finally:
        mount.clean_up()
