"""What starts quickly stays quick: nothing heavy is imported for a help text, a mount or the daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("scipy", "matplotlib", "torch", "numba")


@pytest.mark.parametrize(
    "code",
    [
        "from mlfs.cli import commands; commands.build_parser(['--help'])",
        "from mlfs.cli.commands import build_parser; build_parser(['mount']); import mlfs.config, mountd.preflight",
        "import mountd.daemon, mountd.known_speeds",
        "from mlfs.cli import commands; commands.build_parser(['plan', 'advise', 'calibrate'])",
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(code: str) -> None:
    check = f"import sys; found = [name for name in {HEAVY!r} if name in sys.modules]; assert not found, found"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


INTERRUPTED_IMPORT = """
import os, signal, sys
import mlfs.cli.main as way_in

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, {handler})
sys.meta_path.insert(0, Interrupting)
sys.argv = ["mlfs", "status", "/nowhere"]
sys.exit(way_in.main())
"""


@pytest.mark.parametrize(
    ("module", "handler", "code", "said"),
    [
        ("mlfs.cli.commands", "signal.default_int_handler", 130, ""),
        ("mlfs.cli.unmount", "signal.default_int_handler", 130, ""),
        ("mlfs.units", "signal.default_int_handler", 130, "mlfs: interrupted\n"),
        ("mlfs.cli.commands", "signal.SIG_IGN", 8, "mlfs: /nowhere is not an mlfs mount"),
    ],
)
def test_ctrl_c_during_an_import_ends_without_a_traceback(module: str, handler: str, code: int, said: str) -> None:
    program = INTERRUPTED_IMPORT.format(module=module, handler=handler)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)
