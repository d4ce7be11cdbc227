"""Every reason not to mount: one line, a remedy, the documented exit code. And the one that is mended: dead mounts."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import NOBODY, Mounts, as_nobody

from mlfs.config import CacheDir, MountConfig
from mlfs.errors import ExitCode, MlfsError
from mountd import mounts, preflight, runtime


@pytest.fixture
def config(open_dir: Path) -> MountConfig:
    """A config that passes."""
    (open_dir / "src" / "sub").mkdir(parents=True)
    (open_dir / "mnt").mkdir()
    (open_dir / "file").write_text("x")
    return MountConfig(source=str(open_dir / "src"), mountpoint=str(open_dir / "mnt"), ram_bytes=0, staging_bytes=2**26)


def refused(config: MountConfig, code: ExitCode, says: str, **changes: object) -> MlfsError:
    with pytest.raises(MlfsError) as error:
        preflight.check(config.model_copy(update=changes))
    assert re.search(says, error.value.message), error.value.message
    assert error.value.exit_code == code
    assert error.value.hint
    assert "\n" not in str(error.value)
    return error.value


def test_what_is_right_passes_also_over_the_source_itself(config: MountConfig, open_dir: Path) -> None:
    preflight.check(config)
    preflight.check(config.model_copy(update={"mountpoint": config.source}))
    (open_dir / "link").symlink_to("src")
    preflight.check(config.model_copy(update={"mountpoint": config.source, "source": f"{open_dir}/link"}))


def test_bad_sources(config: MountConfig, open_dir: Path) -> None:
    source = ExitCode.SOURCE
    refused(config, source, "does not exist", source=f"{open_dir}/none")
    refused(config, source, "not a directory", source=f"{open_dir}/file")
    refused(config, source, "through a file", source=f"{open_dir}/file/x")
    refused(config, source, "is empty", source=f"{open_dir}/src/sub")


def test_bad_mount_points(config: MountConfig, open_dir: Path) -> None:
    point = ExitCode.MOUNT_POINT
    error = refused(config, point, "does not exist", mountpoint=f"{open_dir}/none")
    assert error.hint == f"mkdir -p {open_dir}/none"
    refused(config, point, "not a directory", mountpoint=f"{open_dir}/file")
    refused(config, point, "inside the source", mountpoint=f"{open_dir}/src/sub")
    refused(config, point, "inside the mount point", mountpoint=str(open_dir))
    (open_dir / "mnt" / "x").touch()
    refused(config, point, "not empty")
    (open_dir / "link").symlink_to("src/sub")
    refused(config, point, "inside the source", mountpoint=f"{open_dir}/link")


def test_a_name_that_begins_alike_is_not_inside(config: MountConfig, open_dir: Path) -> None:
    (open_dir / "src2").mkdir()
    preflight.check(config.model_copy(update={"mountpoint": f"{open_dir}/src2"}))


def test_bad_cache_directories(config: MountConfig, open_dir: Path) -> None:
    def dirs(*names: str) -> list[CacheDir]:
        return [CacheDir(path=f"{open_dir}/{name}", bytes=2**20) for name in names]

    cache = ExitCode.CACHE
    preflight.check(config.model_copy(update={"ssd": dirs("new"), "lmdb": dirs("new2")}))
    refused(config, cache, "there is no .*/none", ssd=dirs("none/below"))
    refused(config, cache, "not a directory", lmdb=dirs("file"))
    refused(config, cache, "inside the source", ssd=dirs("src/sub"))
    refused(config, cache, "inside the mount point", ssd=dirs("mnt"))
    refused(config, cache, "twice .--ssd", ssd=dirs("c", "c"))


@pytest.mark.parametrize(
    ("prepare", "code", "says"),
    [
        (lambda d: (d / "src").chmod(0o311), ExitCode.SOURCE, "not readable"),
        (lambda d: (d / "src").chmod(0o644), ExitCode.SOURCE, "not executable"),
        (lambda d: (d / "mnt").chmod(0o555), ExitCode.NOT_PERMITTED, "not writable"),
        (lambda d: (d / "c").chmod(0o555), ExitCode.CACHE, "not writable"),
        (lambda d: ((d / "c").rmdir(), d.chmod(0o555)), ExitCode.CACHE, "cannot be made"),
    ],
)
def test_what_a_user_may_not(
    config: MountConfig, prepare: Callable[[Path], object], code: ExitCode, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "DEV_FUSE", os.devnull)
    open_dir = Path(config.source).parent
    (open_dir / "c").mkdir()
    (open_dir / "run").mkdir(mode=0o700)  # the records of whoever may not
    os.chown(open_dir / "run", NOBODY if os.geteuid() == 0 else -1, -1)
    monkeypatch.setenv("MLFS_RUNTIME_DIR", str(open_dir / "run"))
    for name in ("src", "mnt", "c"):
        (open_dir / name).chmod(0o777)
    with_cache = config.model_copy(update={"ssd": [CacheDir(path=f"{open_dir}/c", bytes=2**20)]})
    as_nobody(lambda: preflight.check(with_cache))
    prepare(open_dir)
    with pytest.raises(MlfsError, match=says) as error:
        as_nobody(lambda: preflight.check(with_cache))
    assert error.value.exit_code == code
    assert error.value.hint


def test_fuse_itself(config: MountConfig, open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "DEV_FUSE", f"{open_dir}/no-fuse")
    assert "modprobe fuse" in refused(config, ExitCode.NO_FUSE, "there is no").hint
    monkeypatch.setattr(preflight, "DEV_FUSE", str(open_dir))
    refused(config, ExitCode.NO_FUSE, "cannot be opened")
    monkeypatch.setattr(preflight, "DEV_FUSE", os.devnull)
    monkeypatch.setenv("PATH", str(open_dir))
    assert "fuse3" in refused(config, ExitCode.NO_FUSE, "fusermount3 is not installed").hint


def test_allow_other_needs_a_line_in_fuse_conf(open_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "DEV_FUSE", os.devnull)
    conf = open_dir / "fuse.conf"
    monkeypatch.setattr(preflight, "FUSE_CONF", str(conf))
    for text in (None, "# user_allow_other\nmount_max = 3\n"):
        if text is not None:
            conf.write_text(text)
        with pytest.raises(MlfsError, match="--allow-other") as error:
            as_nobody(lambda: preflight.check_fuse(True))
        assert error.value.exit_code == ExitCode.NOT_PERMITTED
        assert "user_allow_other" in error.value.hint
    conf.write_text("mount_max = 3\n  user_allow_other\n")
    as_nobody(lambda: preflight.check_fuse(True))


def test_a_source_that_hangs_is_given_up(config: MountConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "look_at_source", lambda source: threading.Event().wait())
    refused(config, ExitCode.SOURCE, "does not answer within 0.05 s", source_timeout_s=0.05)


def test_a_second_mount_is_refused_by_name_of_the_first(config: MountConfig, open_dir: Path, tiny: Mounts) -> None:
    server = tiny.start(config.mountpoint)
    runtime.write(config.mountpoint, config.source, None, pid=server.pid)
    error = refused(config, ExitCode.MOUNT_POINT, f"already mounted by mlfs by process {server.pid}")
    assert f"mlfs unmount {config.mountpoint}" in error.hint
    refused(config, ExitCode.MOUNT_POINT, "above", source=f"{config.mountpoint}/x", mountpoint=f"{open_dir}/src/sub")


def test_dead_mounts_are_cleaned_up_also_stacked_and_above(config: MountConfig, open_dir: Path, tiny: Mounts) -> None:
    over_itself = config.model_copy(update={"mountpoint": config.source, "source": config.source})
    servers = tiny.start_stacked(config.source)
    for server in servers:
        tiny.kill(server)
    notes: list[str] = []
    preflight.check(over_itself, note=notes.append)
    assert len(notes) == len(servers)
    assert config.source in notes[0]
    assert mounts.mount_at(config.source) is None
    assert runtime.read(config.source) is None
    # The source lies below a directory with a dead mount on it.
    tiny.kill(tiny.start(config.source))
    refused(config, ExitCode.SOURCE, "is empty", source=f"{config.source}/sub")
    assert mounts.mount_at(config.source) is None


def test_own_files_are_not_written_into_the_data_set(config: MountConfig, open_dir: Path) -> None:
    refused(config, ExitCode.USAGE, "--index .* is inside the source", index=f"{open_dir}/src/index")
    refused(config, ExitCode.USAGE, "--log-file .* is inside the source", log_file=f"{open_dir}/src/sub/log")
    (open_dir / "link").symlink_to("src")
    refused(config, ExitCode.USAGE, "--index .* is inside the source", index=f"{open_dir}/link/index")
    preflight.check(config.model_copy(update={"index": f"{open_dir}/src.index", "log_file": f"{open_dir}/log"}))
