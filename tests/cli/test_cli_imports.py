"""What starts quickly stays quick: nothing heavy is imported for a help text, a mount or the daemon."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("scipy", "matplotlib", "torch", "numba")


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("from mlfs.cli import commands; commands.build_parser(['--help'])", ["numpy", "pydantic"]),
        (
            "from mlfs.cli.main import main; assert main(['mount', '/proc/no-such-source']) == 3, 'preflight'",
            ["numpy", "trio"],
        ),
        ("import mountd.daemon", ["prometheus_client"]),
        ("from mlfs.cli import commands; commands.build_parser(['plan', 'advise', 'calibrate'])", ["numpy"]),
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(code: str, more: list[str]) -> None:
    heavy = (*HEAVY, *more)
    check = f"import sys; found = [name for name in {heavy!r} if name in sys.modules]; assert not found, found"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# What a mount loads before its first read, ours and the standard library aside. Each takes time of all who mount.
DAEMONS_PACKAGES = {
    "numpy", "trio", "attr", "attrs", "outcome", "sniffio", "sortedcontainers", "idna", "pyfuse3", "pydantic",
    "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "lmdb", "xxhash", "blake3",
}  # fmt: skip
MOST_OF_OURS = 330


def test_a_mount_loads_no_more_than_it_needs() -> None:
    code = """
import sys
before = set(sys.modules)
import mountd.daemon
print(*sorted(set(sys.modules) - before))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    # Cython's own modules have its version in their names.
    packages = {name.partition(".")[0] for name in said if not name.startswith(("_", "cython_runtime"))}
    assert packages - sys.stdlib_module_names - {"mlfs", "mountd"} <= DAEMONS_PACKAGES
    assert sum(name.startswith(("mlfs.", "mountd.")) for name in said) <= MOST_OF_OURS


def test_commands_know_the_daemons_package_by_its_door_only() -> None:
    mlfs = Path(__file__).parents[2] / "mlfs"
    for path in sorted([*mlfs.glob("cli/*.py"), *mlfs.glob("lab/commands/*.py")]):
        imported = re.findall(r"^\s*(?:from|import) (mountd\S*)(?: import (.*))?$", path.read_text(), re.MULTILINE)
        for module, names in imported:
            assert module == "mountd.interface" or (module, names) == ("mountd", "interface"), (
                f"{path} imports {module}: {names}"
            )


def test_the_door_is_light() -> None:
    heavy = {*HEAVY, "numpy", "pydantic", "rich", "trio", "pyfuse3", "lmdb", "mlfs.config"}
    code = f"import sys, mountd.interface; print(*({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"


GARBAGE = """
import atexit, gc
from mountd.__main__ import load

def searches():
    return sum(generation["collections"] for generation in gc.get_stats())

before = searches()
atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000, searches() - before))
load()
"""


def test_nobody_looks_for_garbage_among_what_a_daemon_imports() -> None:
    """It took a third of each start: 200 times while the modules came, and once more among all of them."""
    said = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, check=True).stdout
    enabled, frozen, searched = said.split()[-3:]
    assert (enabled, frozen) == ("True", "True")
    assert int(searched) < 10


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
        ("mlfs.cli.parser", "signal.default_int_handler", 130, ""),
        ("mlfs.cli.status", "signal.default_int_handler", 130, ""),
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
