"""What docs/operation has for those who run machines: units, an image, a manifest; and the commands of the text.

Neither systemd nor docker nor Kubernetes runs here. What they would run is tried, or at least understood by mlfs.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.fuse import PATIENCE_S, wait_until
from support.mounts import MlfsMount
from support.trees import make_tree

from mlfs.cli.commands import build_parser
from mlfs.config import load_config

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "operation"
MANIFEST = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def understood(words: list[str]) -> None:
    """Fails unless mlfs takes these words."""
    assert words[0].rpartition("/")[2] == "mlfs"
    build_parser(words[1:]).parse(words[1:])


def commands_in(text: str) -> list[list[str]]:
    """Those of mlfs in a text, from each to the end of its line, without what the shell makes of the line."""
    return [shlex.split(re.split(r"[|>]", line)[0]) for line in re.findall(r"^    (mlfs .*)$", text, re.MULTILINE)]


def test_mlfs_takes_the_commands_of_the_text() -> None:
    found = commands_in((DOCS / "operation.md").read_text())
    assert len(found) >= 3
    for words in found:
        understood(words)


# -- systemd


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    names = {"mlfs@.service": "mlfs@data-imagenet.service", "mlfs-metrics.service": "", "mlfs-metrics.timer": ""}
    for name, instance in names.items():
        # The programs that a unit starts must be there.
        text = (FOLDER / name).read_text().replace("/usr/local/bin/mlfs", "/bin/true ")
        (tmp_path / (instance or name)).write_text(text)
    units = [tmp_path / (instance or name) for name, instance in names.items()]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_runs_what_mlfs_takes() -> None:
    text = (FOLDER / "mlfs@.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    understood(start.replace("%i", "data-imagenet").split())
    settings = tomllib.loads("\n".join(re.findall(r"^# {7}(\w.* = .*)$", text, re.MULTILINE)))
    config = load_config(settings, limit_bytes=1 << 36)
    assert config.mountpoint == "/data/imagenet"  # as systemd-escape has it, data-imagenet
    assert config.ssd[0].bytes == 100 << 30


class InForeground(MlfsMount):
    """As the service mounts: in the foreground, told of by a datagram."""

    def __init__(self, source: Path, state: Path) -> None:
        super().__init__(source, state=state)
        self.heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.heard.bind(str(state / "notify"))
        self.heard.settimeout(PATIENCE_S)
        self.extra_env = {"NOTIFY_SOCKET": str(state / "notify")}

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`mlfs mount` goes on; all others end."""
        if argv[0] != "mount":
            return super().run(*argv, check=check)
        command = [sys.executable, "-P", "-m", "mlfs.cli.main", *argv, "--foreground"]
        (self.state / "trio.py").write_text("raise SystemExit('this is anybody's module')")
        with open(self.state / "log", "wb") as log:
            self.process = subprocess.Popen(command, env=self.env, cwd=self.state, stdout=log, stderr=log)
        assert self.heard.recv(100) == b"READY=1"
        return subprocess.CompletedProcess(command, 0, "", "")


def test_a_mount_in_the_foreground_says_when_it_serves_and_its_metrics_are_found(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with InForeground(make_tree(tmp_path / "a source", {"a": b"x"}), state) as mount:
        assert mount.is_mounted
        assert (mount.path / "a").read_bytes() == b"x"
        out = tmp_path / "mlfs.prom"
        subprocess.run([FOLDER / "mlfs-metrics", out], check=True, timeout=PATIENCE_S)
        assert out.stat().st_mode & 0o777 == 0o644
        families = list(text_string_to_metric_families(out.read_text()))
        assert len({family.name for family in families}) == len(families)
        (info,) = [family for family in families if family.name == "mlfs_info"]
        assert str(mount.path) in {sample.labels["mountpoint"] for sample in info.samples}
        server = mount.pid
        os.kill(server, signal.SIGKILL)
        assert mount.pid != server
        assert (mount.path / "a").read_bytes() == b"x"
        assert mount.status()["processes"][0]["pid"] == mount.process.pid
        mount.process.terminate()
        assert mount.process.wait(PATIENCE_S) == 0
        wait_until(lambda: not mount.is_mounted)
    mount.heard.close()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("mlfs.prom.")] == []


# -- containers


def test_what_the_image_is_made_of_is_there() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY ([^-].*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {"mlfs", "mountd", "setup.py", "pyproject.toml", "docs/man"} <= set(copied)
    for name in copied:
        assert (DOCS.parent / name).exists(), name
    (example,) = re.findall(r"^# +(mlfs mount .*)$", text, re.MULTILINE)
    understood(example.split())


def pods() -> list[dict[str, Any]]:
    return [document["spec"]["template"]["spec"] for document in MANIFEST]


@pytest.mark.parametrize("pod", pods(), ids=[document["kind"] for document in MANIFEST])
def test_kubernetes_would_run_what_mlfs_takes(pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    containers = pod["containers"] + pod.get("initContainers", [])
    assert {mount["name"] for one in containers for mount in one["volumeMounts"]} <= volumes
    taken = 0
    for container in containers:
        words = container["command"] + container.get("args", [])
        if "mlfs" in words:
            understood(words[words.index("mlfs") :])
            taken += 1
        if "readinessProbe" in container:
            understood(container["readinessProbe"]["exec"]["command"])
    assert taken == 1


def test_the_mount_spreads_to_the_host_and_from_there_to_jobs() -> None:
    def propagation(pod: dict[str, Any]) -> set[str]:
        containers = pod["containers"] + pod.get("initContainers", [])
        mounts = (mount for one in containers for mount in one["volumeMounts"] if mount["name"] == "data")
        return {mount["mountPropagation"] for mount in mounts}

    mounting, training = pods()
    assert propagation(mounting) == {"Bidirectional"}
    assert mounting["containers"][0]["securityContext"]["privileged"]
    assert propagation(training) == {"HostToContainer"}
    assert mounting["hostPID"]  # tests/e2e/test_container_examples.py runs it
    assert "docker run --rm --pid=host " in (FOLDER / "Dockerfile").read_text()
    assert "bind-propagation=rslave" in (FOLDER / "Dockerfile").read_text()
    assert (
        os.path.commonpath(
            [v["hostPath"]["path"] for p in (mounting, training) for v in p["volumes"] if v["name"] == "data"]
        )
        == "/data"
    )
