"""What starts quickly stays quick: nothing heavy is imported for a help text, a mount or the daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("scipy", "matplotlib", "torch", "numba")


@pytest.mark.parametrize(
    "code",
    [
        "from mlfs.cli import main; main.build_parser(['--help'])",
        "from mlfs.cli import main; main.build_parser(['mount']); import mlfs.cli.mount, mlfs.config, mountd.preflight",
        "import mountd.daemon, mountd.calibrated",
        "from mlfs.cli import main; main.build_parser(['plan', 'advise', 'calibrate'])",
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(code: str) -> None:
    check = f"import sys; found = [name for name in {HEAVY!r} if name in sys.modules]; assert not found, found"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
