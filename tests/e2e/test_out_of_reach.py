"""What a registration may ask for: a mount computes it beside everything else, or refuses it with the field's name."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for number in range(40):
        (tmp_path / "source" / f"f{number:02}").write_bytes(b"%d" % number)
    return tmp_path / "source"


def answer(mount: MlfsMount, **fields: Any) -> dict[str, Any]:
    """What the control file says to a line, accepted or not."""
    with open(mount.path / ".mlfs" / "control", "r+b", buffering=0) as file:
        with contextlib.suppress(OSError):
            file.write(json.dumps({"layout": "sorted"} | fields).encode() + b"\n")
        return dict(json.loads(os.pread(file.fileno(), 1 << 20, 0)))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.wall_clock
def test_no_registration_holds_up_the_mount_or_fills_its_memory(source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(24 << 30)
    weighted = {"sampler": "torch-weighted", "epochs": 2}
    bad: list[tuple[str, dict[str, Any]]] = [
        ("weights_file", weighted | {"weights_file": str(tmp_path / name)}) for name in ("fifo", "sparse", ".")
    ]
    bad += [
        ("weights_file", weighted | {"weights_file": "/dev/zero"}),
        ("order_file", {"sampler": "explicit", "layout": "sorted", "epochs": 1, "order_file": "/dev/zero"}),
        ("manifest_file", {"layout": "manifest", "epochs": 1, "manifest_file": str(tmp_path / "fifo")}),
        ("num_samples", {"sampler": "torch-random", "epochs": 1, "replacement": True, "num_samples": 5 * 10**7}),
        ("num_samples", {"sampler": "torch-random", "epochs": 1, "num_samples": 10**12}),
        ("ranks", {"sampler": "torch-random", "epochs": 1, "world_size": 10**6}),
    ]
    with MlfsMount(source) as mount:
        before = peak_bytes(mount.pid)
        for field, fields in bad:
            told = answer(mount, **fields)
            assert (told["ok"], told["field"]) == (False, field), told
        assert peak_bytes(mount.pid) - before < 200 << 20

        said: dict[str, Any] = {}

        def register() -> None:
            said.update(
                answer(mount, name="far", sampler="torch-random", epochs=3, generator="own", words_before=10**10)
            )

        thread = threading.Thread(target=register)
        thread.start()
        used = cpu_s(mount.pid)
        wait_until(lambda: cpu_s(mount.pid) > used + 0.2)  # it computes
        began = time.monotonic()
        assert mount.register(name="near", seed=1, epochs=2, layout="sorted")["ok"]
        assert [entry.read_bytes() for entry in sorted(mount.path.iterdir())] == [b"%d" % n for n in range(40)]
        assert thread.is_alive()
        assert time.monotonic() - began < 20
        assert mount.control({"op": "unregister", "name": "far"})["ok"]
        thread.join(20)
        assert said["ok"] is False
        assert "unregistered" in said["error"]
        mount.settle()
        used = cpu_s(mount.pid)
        time.sleep(0.5)
        assert cpu_s(mount.pid) - used < 0.3, "it goes on computing"
