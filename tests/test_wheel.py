"""A wheel is built from the sources and installed in a fresh environment; it knows its commit, and it mounts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ["pyproject.toml", "setup.py", "README.md", "LICENSE", "mlfs", "mountd", "docs/man"]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]


def run(*words: str | Path, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GIT_"))} | more
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def test_a_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
    checkout, wheels, environment = tmp_path / "checkout", tmp_path / "wheels", tmp_path / "environment"
    for name in SOURCES:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    run("git", "init", "--quiet", checkout)
    run("git", "-C", checkout, "add", ".")
    run("git", "-C", checkout, "-c", "user.name=n", "-c", "user.email=e@e", "commit", "--quiet", "-m", "all")
    commit = run("git", "-C", checkout, "rev-parse", "--short=12", "HEAD")

    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, checkout)
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    run(*PIP, "--python", environment / "bin/python", "install", "--no-deps", "--no-compile", *wheels.iterdir())

    assert run(environment / "bin/mlfs", "--version").endswith(f" (commit {commit})")
    assert run(environment / "bin/mount.mlfs", "--help").startswith("usage: mount.mlfs")
    path = f"{environment}/bin:{os.environ['PATH']}"
    for page in ("mlfs", "mlfs-mount", "mount.mlfs"):
        assert run("man", "-w", page, PATH=path).startswith(str(environment))

    libraries = next((environment / "lib").glob("python*/site-packages")) / "libraries.pth"
    libraries.write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_text("x")
    places = dict.fromkeys(("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "MLFS_RUNTIME_DIR"), str(tmp_path / "state"))
    run(environment / "bin/mlfs", "mount", tmp_path / "source", "--ram", "1M", "--staging", "1M", **places)
    try:
        assert run("cat", tmp_path / "source/a") == "x"
        process = json.loads((tmp_path / "source/.mlfs/status").read_bytes())["pid"]
        assert os.readlink(f"/proc/{process}/cwd") == "/"
        assert str(environment) in Path(f"/proc/{process}/cmdline").read_text()
    finally:
        run(environment / "bin/mlfs", "unmount", tmp_path / "source", **places)
