"""What bash completes after `mlfs completion bash`: asked in a real bash, by the function that it calls for a Tab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.mounts import MlfsMount
from support.trees import make_tree

from mlfs.cli import main as cli

ASK = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
# The function that `complete -F` has registered for mlfs.
complete_with=$(complete -p mlfs | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
$complete_with mlfs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "mlfs.bash"
    command = [sys.executable, "-m", "mlfs", "completion", "bash"]
    path.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    return path


def completed(script: Path, *words: str, cwd: Path | None = None) -> list[str]:
    """What bash offers for the last word."""
    command = ["bash", "--norc", "-c", ASK, "bash", str(script), "mlfs", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=os.environ)
    assert not done.stderr
    return done.stdout.split()


def test_there_is_a_script_for_each_shell(capsys: pytest.CaptureFixture[str]) -> None:
    beginnings = {"bash": "# AUTOMATICALLY GENERATED", "zsh": "#compdef mlfs\n", "fish": "# AUTOMATICALLY GENERATED"}
    for shell, beginning in beginnings.items():
        assert cli.main(["completion", shell]) == 0
        text = capsys.readouterr().out
        assert text.startswith(beginning)
        assert "log-format" in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["regi"], ["register"]),
        (["un"], ["unregister", "unmount"]),
        (["mount", "--log-f"], ["--log-file", "--log-format", "--log-files"]),
        (["mount", "--log-format", ""], ["text", "json"]),
        (["register", "--sampler", "torch-di"], ["torch-distributed"]),
        (["register", "--layout", "tf"], ["tf-list-files", "tfrecord"]),
        (["cache", "ver"], ["verify"]),
        (["cache", "verify", "--k"], ["--keep"]),
        (["completion", "b"], ["bash"]),
    ],
)
def test_commands_flags_and_values(script: Path, words: list[str], offered: list[str]) -> None:
    assert sorted(completed(script, *words)) == sorted(offered)


def test_directories_and_files(script: Path, tmp_path: Path) -> None:
    make_tree(tmp_path, {"data/a": b"", "date.toml": b"", "other": b""})
    assert completed(script, "mount", "da", cwd=tmp_path) == ["data"]
    assert sorted(completed(script, "mount", "--config", "da", cwd=tmp_path)) == ["data", "date.toml"]
    assert completed(script, "mount", "--ssd", f"{tmp_path}/d") == [f"{tmp_path}/data"]


def test_mounts(script: Path, tmp_path: Path) -> None:
    with MlfsMount(make_tree(tmp_path / "source", {"a": b"x"})) as mount:
        assert completed(script, "status", str(tmp_path)) == [str(mount.path)]
    assert completed(script, "status", str(tmp_path)) == []
