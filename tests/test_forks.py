"""The daemons that tests fork (support/forks.py) are as those that users start: the same files, signals and words."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import scripts
from support.forks import ForkServer, forks
from support.mounts import MlfsMount
from support.trees import image_folder, make_tree


def facts_of(mount: MlfsMount) -> dict[str, Any]:
    """A daemon as others see it, without numbers that differ from start to start."""
    with mount:
        mount.settle()
        process = Path(f"/proc/{mount.pid}")
        lines = (line.partition(":") for line in (process / "status").read_text().splitlines())
        status = {name: value.strip() for name, _, value in lines}
        files = [os.readlink(file) for file in (process / "fd").iterdir()]
        printed = mount.run("status", str(mount.path)).stdout
        facts = {
            "known as": list(mount.pids()) == [os.getsid(mount.pid), mount.pid],
            "process": {name: status[name] for name in ("Umask", "SigBlk", "SigIgn", "SigCgt")},
            "directory": os.readlink(process / "cwd"),
            "files": sorted(without_numbers(file, mount) for file in files),
            "status": sorted(mount.status()),
            "commands say": without_numbers(" ".join(printed.split()), mount),  # wrapped by lengths of numbers
        }
        said = mount.said
    return facts | {"mount says": without_numbers(said, mount)}


def without_numbers(text: str, mount: MlfsMount) -> str:
    return re.sub(
        r"\d+(\.\d+)?( m?s\b)?", "0", text.replace(str(mount.state), "STATE").replace(str(mount.source), "SOURCE")
    )


def test_a_forked_daemon_is_as_one_with_an_interpreter_of_its_own(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", image_folder())
    forked = facts_of(MlfsMount(source))
    with forks.off():
        own = facts_of(MlfsMount(source))
    assert forked == own


def test_what_python_reads_as_it_starts_needs_an_interpreter_of_its_own() -> None:
    server = ForkServer()
    assert server.can_run(os.environ | {"MLFS_RUNTIME_DIR": "/elsewhere"})
    assert not server.can_run(os.environ | {"PYTHONPATH": "/elsewhere"})
    with server.off():
        assert not server.can_run(os.environ)
    with pytest.raises(TimeoutError), server.off():  # a test that fails
        raise TimeoutError
    assert server.can_run(os.environ)


SHOWS = """
import json, os, random, subprocess, sys
import torch
own = [sys.argv, os.environ["RANK"], __name__, sys.stdin.read(), random.random(), torch.rand(1).item(), os.getcwd()]
own += [open(f"/proc/self/{name}").read().strip("\\0").split("\\0") for name in ("cmdline", "environ")]
print(json.dumps(own), flush=True)
if len(sys.argv) == 2:
    sys.exit(subprocess.call([sys.executable, "-c", sys.argv[1], "a", "b"], env={"RANK": "7"}))
sys.exit(3)
"""


def test_a_forked_script_is_as_one_with_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """So is what it starts itself, as a launcher starts ranks; but for random numbers, which nobody has seeded."""
    words = [sys.executable, "-c", SHOWS, SHOWS]
    environment = os.environ | {"RANK": "1"}
    forked = scripts.run(words, check=False, input="told", env=environment, cwd=tmp_path)
    own = subprocess.run(
        words, check=False, input="told", env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (forked.returncode, forked.stderr) == (own.returncode, own.stderr) == (3, "")
    shown = [[json.loads(line) for line in of.stdout.splitlines()] for of in (forked, own)]
    drawn = [of[4:6] for of in (*shown[0], *shown[1])]
    for (*before, _, _, directory, command, variables), (*others, _, _, at, line, told) in zip(*shown, strict=True):
        assert (before, directory, command, sorted(variables)) == (others, at, line, sorted(told))
    assert len({number for numbers in drawn for number in numbers}) == 8


def test_a_forked_script_ends_as_it_is_told_to() -> None:
    with scripts.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as script:
        assert script.poll() is None
        script.terminate()
        assert script.wait(60) == -signal.SIGTERM
    failed = scripts.run([sys.executable, "-c", "1 / 0"], check=False)
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr
