"""What is for studying stays out of the daemon and of a node's agent: no module of it is loaded there."""

from __future__ import annotations

import subprocess
import sys

import pytest

LABORATORY = ("mlfs.lab", "matplotlib")
# Whatever a module imports only when it is needed, these import all the same: each module of the package is loaded.
ALL_OF = """
import importlib, pkgutil, sys
for name in {packages!r}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):  # it runs as it is imported
            importlib.import_module(module.name)
"""


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import mountd.daemon", ("scipy",)),
        ("import mlfs.peers.keeper, mlfs.peers.process", ("scipy",)),
        ("import mlfs.explain.seed_search", ("scipy",)),
        # numba, which searches seeds where it is installed, loads scipy where that is.
        (ALL_OF.format(packages=["mountd", "mlfs.engine", "mlfs.explain", "mlfs.places", "mlfs.orders"]), ()),
    ],
    ids=["daemon", "agent", "search", "all that a daemon may load"],
)
def test_no_module_of_the_laboratory_is_loaded(code: str, others: tuple[str, ...]) -> None:
    check = (
        f"import sys; found = [name for name in sys.modules for part in {(*LABORATORY, *others)!r}"
        " if name == part or name.startswith(part + '.')]; assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
