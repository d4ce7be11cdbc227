"""The containers of docs/operation are run: not by docker or Kubernetes, but as these would, in namespaces.

A container here is a mount namespace with a root of its own, in which the volumes of the example lie as it says, with
the propagation that it says, and a pid namespace of its own unless the example shares the host's. The commands are
those of the examples, with less memory. "The host" is a directory.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.fuse import kill, require_fuse, wait_until
from support.mounts import FSTYPE
from support.trees import make_tree

import mlfs

FOLDER = Path(__file__).parents[2] / "docs" / "operation"
FILES = {f"class{n % 3}/{n:03}.jpg": 500 + n for n in range(96)}
SYSTEM = ("bin", "etc", "lib", "lib64", "sbin", "usr")
READ_ALL = "import pathlib, sys; print(sum(len(p.read_bytes()) for p in pathlib.Path(sys.argv[1]).glob('*/*.jpg')))"


class Volume(NamedTuple):
    """A directory of the host as a container sees it. `propagation`: "shared", "slave" or "private"."""

    host: str
    inside: str
    propagation: str = "private"
    read_only: bool = False


class Container:
    """A process in namespaces as a container has them."""

    def __init__(self, host: Path, root: Path, volumes: list[Volume], host_pid: bool, command: list[str]) -> None:
        self.root = root
        root.mkdir()
        venv, python = Path(sys.prefix), Path(sys.base_prefix)
        lines = ["set -e", f"mount -t tmpfs none {root}", f"cd {root}", "mkdir proc tmp run root"]
        for name in SYSTEM:
            mounted = f"if [ -d /{name} ]; then mkdir {name}; mount --bind /{name} {name}; fi"
            lines.append(f"if [ -L /{name} ]; then cp -P /{name} .; else {mounted}; fi")
        for needed in dict.fromkeys((python, venv, Path(mlfs.__file__).parents[1])):
            lines.append(f"mkdir -p .{needed}; mount --bind {needed} .{needed}")
        lines += ["mkdir dev sys; mount --rbind /dev dev; mount --rbind /sys sys"]
        lines.append("mount --rbind /proc proc" if host_pid else "mount -t proc proc proc")
        for host_path, inside, propagation, read_only in volumes:
            lines.append(f"mkdir -p .{inside}; mount --rbind {host}{host_path} .{inside}")
            lines.append(f"mount --make-r{propagation} .{inside}")
            lines += [f"mount -o remount,bind,ro .{inside}"] * read_only
        lines.append(f"exec chroot . {shlex.join(command)}")
        self.said = open(root.with_suffix(".said"), "w+b")  # noqa: SIM115 - closed by `end`
        options = ["--mount", "--propagation", "unchanged", *([] if host_pid else ["--pid", "--fork", "--kill-child"])]
        env = {"PATH": f"{venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "XDG_CACHE_HOME": "/tmp/cache", "HOME": "/root"}
        env |= {name: value for name, value in os.environ.items() if name.startswith("MLFS_TEST")}
        self.process = subprocess.Popen(
            ["unshare", *options, "sh", "-c", "\n".join(lines)], env=env, stdout=self.said, stderr=self.said,
            stdin=subprocess.PIPE,
        )  # fmt: skip

    def wait(self) -> str:
        """What it said, which must succeed."""
        self.process.communicate()
        assert self.process.returncode == 0, self.text()
        return self.text()

    def text(self) -> str:
        return Path(self.said.name).read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            kill(self.process.pid)
            self.process.wait()
        self.said.close()


class Host:
    """A machine that has a source at /lustre/imagenet and lets mounts below /data spread."""

    def __init__(self, path: Path) -> None:
        require_fuse()
        self.path = path
        make_tree(path / "lustre" / "imagenet", FILES)
        (path / "scratch/mlfs").mkdir(parents=True)
        (path / "data").mkdir()
        subprocess.run(["mount", "--bind", path / "data", path / "data"], check=True)
        subprocess.run(["mount", "--make-rshared", path / "data"], check=True)
        self.containers: list[Container] = []

    def start(self, volumes: list[Volume], host_pid: bool, command: list[str]) -> Container:
        root = self.path.with_name(f"container{len(self.containers)}")
        self.containers.append(Container(self.path, root, volumes, host_pid, command))
        return self.containers[-1]

    @property
    def mounted(self) -> bool:
        """Whether the host sees the mount."""
        place = f" {self.path}/data/imagenet "
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return any(place in line and f" - {FSTYPE} " in line for line in lines)

    def serves(self, served: Container) -> None:
        wait_until(lambda: self.mounted or served.process.poll() is not None)
        wait_until(lambda: "serv" in served.text() or served.process.poll() is not None)
        assert self.mounted, served.text()

    def clean_up(self) -> None:
        for container in reversed(self.containers):
            container.end()
        subprocess.run(["umount", "-R", "-l", self.path / "data"], check=True)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "host")
    yield made
    made.clean_up()


def smaller(words: list[str]) -> list[str]:
    """With less memory than the machine of the example has."""
    return [re.sub(r"^(--ram=)?8G$", r"\g<1>64M", word) for word in words]


def reads_and_outlives(host: Host, served: Container, training: Container, told_apart: bool) -> None:
    """A training that was there before the mount reads through it, and does not hold it when it ends."""
    assert training.process.stdin is not None
    training.process.stdin.write(b"\n")
    training.process.stdin.flush()
    wait_until(lambda: training.text().endswith("\n") or training.process.poll() is not None)
    assert training.text().split() == [str(sum(FILES.values()))]
    status = (host.path / "data/imagenet/.mlfs/status").read_text()
    assert ("another pid namespace" not in status) == told_apart
    # As docker stop and the kubelet do: the first process of its pid namespace, below `unshare`, is not ours to end.
    if told_apart:
        served.process.send_signal(signal.SIGTERM)
    else:
        subprocess.run(["umount", host.path / "data/imagenet"], check=True)
    assert served.process.wait(60) == 0, served.text()
    wait_until(lambda: not host.mounted)
    assert training.process.poll() is None


def trains(data: str) -> list[str]:
    """Instead of the training: waits for a line, reads all, waits for another."""
    return ["sh", "-c", f"read _; {shlex.join([sys.executable, '-c', READ_ALL, data])}; read _"]


@pytest.mark.promise("namespace-mounts", "namespace-readers", "end-held-elsewhere")
def test_the_pods_of_the_manifest(host: Host) -> None:
    manifest = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    mounting, job = (one["spec"]["template"]["spec"] for one in manifest)
    propagations = {"Bidirectional": "shared", "HostToContainer": "slave", None: "private"}

    def start(pod: dict[str, Any], container: dict[str, Any], command: list[str]) -> Container:
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
        volumes = [
            Volume(paths[v["name"]], v["mountPath"], propagations[v.get("mountPropagation")], v.get("readOnly", False))
            for v in container["volumeMounts"]
        ]
        return host.start(volumes, pod.get("hostPID", False), smaller(command))

    (mlfs_pod,), (training,), (register,) = mounting["containers"], job["containers"], job["initContainers"]
    trained = start(job, training, trains(training["command"][-1]))  # it is there before the mount
    served = start(mounting, mlfs_pod, mlfs_pod["command"] + mlfs_pod["args"])
    host.serves(served)
    enter = ["nsenter", "-t", str(served.process.pid), "-m", "chroot", str(served.root)]
    probe = subprocess.run(
        [*enter, *mlfs_pod["readinessProbe"]["exec"]["command"]],
        env={"PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '"state": "serving"' in probe.stdout
    start(job, register, register["command"] + register["args"]).wait()
    assert '"name": "train"' in (host.path / "data/imagenet/.mlfs/jobs/train.json").read_text()
    reads_and_outlives(host, served, trained, told_apart=True)


@pytest.mark.promise("namespace-mounts", "namespace-readers", "end-held-elsewhere")
@pytest.mark.parametrize("host_pid", [True, False])
def test_the_docker_commands(host: Host, host_pid: bool) -> None:
    """Also without what the text says is not needed for serving right: --pid=host."""
    text = re.sub(r"^# ?", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    serving, training = (shlex.split(line) for line in re.findall(r"^ +docker run (.*)$", text, re.MULTILINE))

    def start(words: list[str], pid: bool, command: list[str]) -> Container:
        volumes = []
        for at, word in enumerate(words):
            if word == "-v":
                source, inside, mode = words[at + 1].split(":")
                volumes.append(Volume(source, inside, read_only=mode == "ro"))
            if word == "--mount":
                told = dict(part.split("=") for part in words[at + 1].split(","))
                volumes.append(Volume(told["source"], told["target"], told["bind-propagation"].removeprefix("r")))
        return host.start(volumes, pid, smaller(command))

    assert "--pid=host" in serving
    (host.path / "data/imagenet").mkdir()  # as the text says
    trained = start(training, False, trains("/data/imagenet"))
    served = start(serving, host_pid, serving[serving.index("mlfs") :])
    host.serves(served)
    reads_and_outlives(host, served, trained, told_apart=host_pid)
