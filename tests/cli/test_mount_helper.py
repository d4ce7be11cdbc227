"""`mount -t mlfs` and a line of /etc/fstab: with the real mount(8) and umount(8), as root."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mounts import COMMAND_TIMEOUT_S, MlfsMount
from support.trees import make_tree

from mlfs.cli import mount_helper
from mlfs.errors import ConfigError

USUAL = "rw,noauto,nofail,_netdev,user=me,nosuid,x-systemd.requires=network.target,comment=data"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ("defaults", []),
        (USUAL, []),
        ("ram=8G,ssd=/scratch:100G,ro,_netdev", ["--ram=8G", "--ssd=/scratch:100G"]),
        ("allow_other,no-rescan,pfs_threads=4", ["--allow-other", "--no-rescan", "--pfs-threads=4"]),
        ('ssd="/a,b:1G",ssd=/c=d:2G', ["--ssd=/a,b:1G", "--ssd=/c=d:2G"]),
    ],
)
def test_each_option_is_a_flag(options: str, flags: list[str]) -> None:
    assert mount_helper.flags_of([options]) == flags


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("rams=8G", "there is no option rams (did you mean ram?)"),
        ("foreground", "there is no option foreground"),
        ("help", "there is no option help"),
        ("ram", "option ram needs a value"),
        ("allow_other=yes", "option allow_other takes no value"),
    ],
)
def test_an_unknown_option_is_refused(option: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        mount_helper.flags_of(["ro", option])
    assert str(refused.value).startswith(said)


def test_a_sloppy_mount_leaves_out_what_is_unknown() -> None:
    assert mount_helper.flags_of(["intr,ram=1G"], sloppy=True) == ["--ram=1G"]


@pytest.fixture
def fstype() -> Iterator[str]:
    """The type under which mount(8) finds the helper: one of our own, since the machine may have `mlfs`."""
    name = f"mlfs{uuid.uuid4().hex[:12]}"
    helper = Path("/sbin") / f"mount.{name}"
    root = Path(__file__).parents[2]
    helper.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m mlfs.cli.mount_helper "$@"\n')
    helper.chmod(0o755)
    yield name
    helper.unlink()


class ByMount8(MlfsMount):
    """A mount that mount(8) makes and umount(8) ends."""

    def __init__(self, source: Path, *words: str, mountpoint: Path) -> None:
        super().__init__(source, mountpoint=mountpoint, infer=True)
        self.words = words

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The programs of the machine for the commands of mlfs."""
        words = ["mount", *self.words] if argv[0] == "mount" else ["umount", str(self.path)]
        done = subprocess.run(
            words, env=self.env, check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
        assert not check or not done.returncode, done.stderr
        return done


def test_mounted_by_mount_and_by_a_line_of_fstab(tmp_path: Path, fstype: str) -> None:
    source, mountpoint = make_tree(tmp_path / "a source", {"a": b"x"}), tmp_path / "mount"
    mountpoint.mkdir()
    ssd = [tmp_path / "ssd1", tmp_path / "ssd2"]
    options = f"ram=3M,staging=2M,infer=off,ssd={ssd[0]}:5M,ssd={ssd[1]}:6M"
    with ByMount8(source, "-v", "-t", fstype, "-o", options, str(source), str(mountpoint), mountpoint=mountpoint) as by:
        assert (mountpoint / "a").read_bytes() == b"x"
        tiers = {tier["name"]: tier["capacity_bytes"] for tier in by.status()["tiers"]}
        assert sorted(tiers.values()) == [3 << 20, 5 << 20, 6 << 20]

    fstab = tmp_path / "fstab"
    line = f"{source}".replace(" ", "\\040")
    fstab.write_text(f"{line} {mountpoint} {fstype} {options},{USUAL.replace('noauto,', '')} 0 0\n")
    with ByMount8(source, "-T", str(fstab), str(mountpoint), mountpoint=mountpoint):
        flags = next(words[3] for words in mounts() if words[1] == str(mountpoint)).split(",")
        assert {"nosuid", "nodev"} <= set(flags)
        subprocess.run(["mount", "-a", "-T", str(fstab)], check=True)  # what is mounted already is left as it is
        subprocess.run(["mount", "-T", str(fstab), str(mountpoint)], check=True)
        assert [words[1] for words in mounts()].count(str(mountpoint)) == 1
        assert (mountpoint / "a").read_bytes() == b"x"


def mounts() -> list[list[str]]:
    return [line.split() for line in Path("/proc/mounts").read_text().splitlines()]


def test_mount_says_in_one_line_what_is_wrong(tmp_path: Path, fstype: str) -> None:
    source = make_tree(tmp_path / "source", {"a": b"x"})
    for options, code, said in (("rams=1G", 1, "there is no option rams"), ("ram=1M", 32, "source .* missing")):
        where = source if code == 1 else tmp_path / "missing"
        words = ["mount", "-t", fstype, "-o", options, str(where), str(source)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=os.environ)
        assert done.returncode == code
        assert done.stderr.count("\n") == 1
        assert said.split(" .* ")[0] in done.stderr
    assert subprocess.run(["mount", "-f", "-t", fstype, str(source), str(source)], check=False).returncode == 0
    assert not [words for words in mounts() if words[1] == str(source)]
