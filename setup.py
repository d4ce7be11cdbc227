"""What pyproject.toml cannot say of the build: a wheel and an archive of the sources know their commit.

In: the checkout. Out: the file that mlfs.commit reads. In an archive of the sources it is there already.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from mlfs.commit import FILE, commit_of_checkout  # noqa: E402


def _write_commit(package: Path) -> None:
    commit = commit_of_checkout(ROOT)
    if commit is not None:
        (package / FILE).write_text(commit + "\n", encoding="ascii")


class BuildPy(build_py):
    """Leaves the commit beside the modules of a wheel. An editable installation asks git each time."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            _write_commit(Path(self.build_lib) / "mlfs")


class Sdist(sdist):
    """Leaves the commit in the archive."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        _write_commit(Path(base_dir) / "mlfs")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
