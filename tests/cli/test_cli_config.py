"""Flags and TOML merged, defaults from the memory limit, cgroups of both versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlfs.config import CacheDir, MountConfig, changed, differing, free_bytes, load_config, memory_warning
from mlfs.errors import ConfigError, ExitCode
from mlfs.limits import MemoryRoom, cgroup_limit_bytes, limit_files, memory_limit_bytes, memory_room, parse_meminfo
from mlfs.plan.memory_budget import LEAST_ROOM_BYTES, OWN_BYTES, divide

MIB, GIB = 2**20, 2**30


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mlfs.toml"
    path.write_text(text)
    return str(path)


def test_defaults_follow_from_the_memory_limit() -> None:
    config = load_config({"source": "/data"}, limit_bytes=64 * GIB)
    assert (config.source, config.mountpoint) == ("/data", "/data")
    assert (config.ram_bytes, config.staging_bytes) == (32 * GIB, 2 * GIB)
    assert (config.pfs_threads, config.source_timeout_s, config.ssd, config.log_file) == (16, 30.0, [], None)


def test_flags_win_over_the_file_and_both_spell_names_alike(tmp_path: Path) -> None:
    path = toml(tmp_path, 'source = "/data"\nram = "4G"\nssd = ["/:1G"]\npfs-threads = 8\nsource-timeout = "5s"\n')
    flags = {"ram": "25%", "pfs_threads": None, "mountpoint": "/mnt/x", "staging": "1G"}
    config = load_config(flags, path, limit_bytes=16 * GIB)
    assert config.ram_bytes == 4 * GIB
    assert config.staging_bytes == GIB
    assert (config.pfs_threads, config.source_timeout_s) == (8, 5.0)
    assert config.ssd == [CacheDir(path="/", bytes=GIB)]
    assert (config.source, config.mountpoint) == ("/data", "/mnt/x")
    assert load_config({"pfs-threads": "3"}, path, limit_bytes=16 * GIB).pfs_threads == 3


def test_relative_paths_are_those_of_where_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/home/me")
    path = toml(tmp_path, 'source = "data/../set"\nlog-file = "~/log"\nlmdb = ["c:d:1G"]\n')
    config = load_config({"mountpoint": "mnt", "index": "~/i"}, path, limit_bytes=GIB)
    assert config.source == f"{tmp_path}/set"
    assert config.log_file == "/home/me/log"
    assert config.lmdb == [CacheDir(path=f"{tmp_path}/c:d", bytes=GIB)]
    assert (config.mountpoint, config.index) == ("/mnt", "/~/i")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('rma = "1G"', "'ram'"),
        ("pfs_thread = 4", "'pfs-threads'"),
        ("zzzzzz = 1", "known keys"),
        ('ram = "lots"', "lots"),
        ("pfs-threads = 0", "pfs-threads"),
        ("pfs-threads = 1.5", "pfs-threads"),
        ('allow-other = "no"', "allow-other"),
        ('ssd = ["/scratch"]', "DIR:SIZE"),
        ("ssd = 4", "DIR:SIZE"),
        ('ssd = ["/scratch:0"]', "keeps nothing"),
        ("log-file = 4", "log-file"),
        ('log-format = "xml"', "log-format"),
        ('log-size = "1K"', "log-size: 1024"),
        ("log-files = -1", "log-files"),
        ('staging = "1K"', "staging"),
        ('source-timeout = "soon"', "soon"),
        ("ram = ", "valid TOML"),
        ('source-timeout = "0s"', "source-timeout"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config({"source": "/data"}, toml(tmp_path, line + "\n"), limit_bytes=GIB)
    assert says in str(error.value)
    assert error.value.hint
    assert error.value.exit_code == ExitCode.USAGE


def test_a_missing_config_file_and_a_missing_source_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config({"source": "/data"}, str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no source"):
        load_config({}, toml(tmp_path, 'ram = "1G"\n'), limit_bytes=4 * GIB)


def test_budgets_above_the_limit_are_refused_and_defaults_give_way() -> None:
    with pytest.raises(ConfigError, match="memory limit of 4 GiB"):
        load_config({"source": "/d", "ram": "60%", "staging": "50%"}, limit_bytes=4 * GIB)
    assert 512 * MIB < load_config({"source": "/d", "staging": "75%"}, limit_bytes=4 * GIB).ram_bytes < GIB
    assert load_config({"source": "/d", "ram": "3G", "staging": "1G"}, limit_bytes=4 * GIB).ram_bytes == 3 * GIB


def test_percent_of_a_cache_directory_is_of_its_free_space(tmp_path: Path) -> None:
    free = free_bytes(str(tmp_path / "not" / "there" / "yet"))
    config = load_config({"source": "/d", "ssd": [f"{tmp_path}/not/there:50%"]}, limit_bytes=GIB)
    # Other processes write to that disk at the same time.
    assert config.ssd[0].bytes == pytest.approx(free / 2, rel=0.2)


def test_any_bytes_in_paths_travel_as_json() -> None:
    name = os.fsdecode(b"/da\xff ta\n[x]")
    config = load_config({"source": name, "ssd": [f"{name}/c:1G"]}, limit_bytes=GIB)
    again = MountConfig.from_json(config.to_json())
    assert again == config
    assert os.fsencode(again.ssd[0].path) == b"/da\xff ta\n[x]/c"
    assert config.to_json().isascii()
    assert "\n" not in config.to_json()


def test_the_config_refuses_what_it_does_not_know() -> None:
    config = load_config({"source": "/d"}, limit_bytes=GIB)
    with pytest.raises(ValueError, match="extra"):
        MountConfig.model_validate({**config.model_dump(), "peers": 3})
    with pytest.raises(ValueError, match="absolute"):
        MountConfig.model_validate({**config.model_dump(), "source": "relative"})


def test_meminfo() -> None:
    assert parse_meminfo("MemTotal:  100 kB\nHugePages_Total:   3\nodd line\n") == {
        "MemTotal": 102400,
        "HugePages_Total": 3,
    }


def test_limits_bind_at_every_level_of_both_versions() -> None:
    v2 = {"/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "700\n"}
    assert cgroup_limit_bytes("0::/a/b\n", v2.get) == 700
    assert cgroup_limit_bytes("0::/a/b\n", (v2 | {"/sys/fs/cgroup/a/b/memory.high": "600"}).get) == 600
    root = "/sys/fs/cgroup/memory"
    v1 = {f"{root}/x/memory.limit_in_bytes": str(2**63 - 4096), f"{root}/memory.limit_in_bytes": "900"}
    assert cgroup_limit_bytes("4:cpu,memory:/x\n0::/\n", v1.get) == 900
    assert cgroup_limit_bytes("4:memory:/x\n", {f"{root}/x/memory.limit_in_bytes": str(2**63 - 4096)}.get) is None
    assert cgroup_limit_bytes("3:cpu:/x\n", v1.get) is None


def test_a_path_with_colons_or_outside_of_the_namespace_is_understood() -> None:
    assert "/sys/fs/cgroup/a:b/memory.max" in limit_files("0::/a:b\n")
    assert limit_files("0::/../../x\n")[0] == "/sys/fs/cgroup/x/memory.max"


def test_the_smallest_of_cgroup_and_machine_counts() -> None:
    files = {"/proc/meminfo": "MemTotal: 1000 kB\n", "/proc/self/cgroup": "0::/\n"}
    assert memory_limit_bytes(files.get) == 1024000
    assert memory_limit_bytes((files | {"/sys/fs/cgroup/memory.max": "5000"}).get) == 5000
    assert memory_limit_bytes((files | {"/sys/fs/cgroup/memory.max": "5000000"}).get) == 1024000
    assert memory_limit_bytes({}.get) == GIB


def test_settings_that_differ_are_named_and_the_same_words_are_the_same(tmp_path: Path) -> None:
    def config(limit: int = 1 << 30, **flags: object) -> MountConfig:
        made = load_config({"source": str(tmp_path), **flags}, limit_bytes=limit)
        return MountConfig.model_validate(json.loads(made.to_json()))  # as the daemon's record has it

    def said(wanted: MountConfig, running: MountConfig) -> list[str]:
        return [*differing(wanted, running).values()]

    assert said(config(), config(limit=1 << 31)) == []  # defaults are the same, whatever they come to
    assert said(config(ram="50%"), config(limit=1 << 31, ram="50%")) == []
    assert said(config(ram="256M"), config(ram=str(1 << 28))) == []
    assert said(config(ssd=["/a:1G"]), config(ssd=["/a:1024M"])) == []
    assert said(config(log_file="/x"), config()) == ["log-file /x, now none"]
    assert said(config(), config(log_file="/x")) == []
    assert said(config(foreground=True), config()) == []
    assert said(config(rescan=True), config(rescan=True)) == ["rescan on, now on"]
    assert said(config(source=str(tmp_path / "b")), config()) == [f"source {tmp_path}/b, now {tmp_path}"]
    assert said(config(ram="128M", ssd=["/a:1G", "/b:2G"], infer="off"), config()) == [
        "ram 128 MiB, now 512 MiB",
        "ssd /a:1 GiB /b:2 GiB, now none",
        "infer off, now on",
    ]


def test_settings_of_a_mount_that_are_not_named_anew_stay() -> None:
    running = load_config({"source": "/data", "mountpoint": "/view", "ram": "50%", "infer": "off"}, limit_bytes=1 << 30)
    now = changed(running, {"ram": None, "pfs-threads": "3", "infer": "on"})
    assert now == running.model_copy(update={"pfs_threads": 3, "infer": True, "asked": now.asked})
    assert now.asked == running.asked | {"pfs-threads": '"3"', "infer": '"on"'}
    with pytest.raises(ConfigError):
        changed(running, {"pfs-threads": "none"})


# -- what others use, and what the daemon itself takes


def cgroup_of(limit: int, used: int, files: int, high: str = "max") -> dict[str, str]:
    """A machine of 64 GiB, and a cgroup of version 2 with a limit, of which so much is used, part of it by files."""
    at = "/sys/fs/cgroup/job"
    return {
        "/proc/meminfo": f"MemTotal: {64 * GIB >> 10} kB\nMemAvailable: {60 * GIB >> 10} kB\n",
        "/proc/self/cgroup": "0::/job\n",
        f"{at}/memory.max": f"{limit}\n",
        f"{at}/memory.high": f"{high}\n",
        f"{at}/memory.current": f"{used}\n",
        f"{at}/memory.stat": f"anon 5\nactive_file {files // 2}\ninactive_file {files - files // 2}\n",
    }


def test_what_others_use_counts_but_not_pages_that_can_be_read_again() -> None:
    assert memory_room(cgroup_of(400 * MIB, 150 * MIB, 50 * MIB).get) == MemoryRoom(
        400 * MIB, 100 * MIB, "/sys/fs/cgroup/job/memory.max"
    )
    high = memory_room(cgroup_of(400 * MIB, 150 * MIB, 50 * MIB, str(300 * MIB)).get)
    assert high == MemoryRoom(300 * MIB, 100 * MIB, "/sys/fs/cgroup/job/memory.high")
    own = cgroup_of(400 * MIB, 150 * MIB, 50 * MIB) | {"/proc/self/statm": f"90000 {20 * MIB // 4096} 0 0 0 0 0\n"}
    assert memory_room(own.get).used_bytes == 80 * MIB  # this process is not the one that will serve


def test_what_is_used_in_a_cgroup_of_version_1_is_known_too() -> None:
    at = "/sys/fs/cgroup/memory/job"
    files = {
        "/proc/meminfo": f"MemTotal: {64 * GIB >> 10} kB\nMemAvailable: {60 * GIB >> 10} kB\n",
        "/proc/self/cgroup": "4:memory:/job\n0::/\n",
        f"{at}/memory.limit_in_bytes": f"{400 * MIB}\n",
        f"{at}/memory.usage_in_bytes": f"{150 * MIB}\n",
        f"{at}/memory.stat": f"active_file 1\ntotal_active_file {30 * MIB}\ntotal_inactive_file {20 * MIB}\n",
    }
    assert memory_room(files.get) == MemoryRoom(400 * MIB, 100 * MIB, f"{at}/memory.limit_in_bytes")


def test_a_machine_that_others_use_leaves_what_is_available() -> None:
    files = {"/proc/meminfo": f"MemTotal: {64 * GIB >> 10} kB\nMemAvailable: {10 * GIB >> 10} kB\n"}
    assert memory_room(files.get) == MemoryRoom(64 * GIB, 54 * GIB, "/proc/meminfo")


@pytest.mark.parametrize("limit", [96 * MIB, 120 * MIB, 400 * MIB, GIB, 16 * GIB, 512 * GIB])
@pytest.mark.parametrize("used_share", [0.0, 0.1, 0.6])
def test_all_parts_together_fit_whatever_the_limit_is(limit: int, used_share: float) -> None:
    used = int(used_share * limit)
    shares = divide(limit, used)
    if shares.room_bytes >= LEAST_ROOM_BYTES:
        assert shares.fits
        assert shares.ram_bytes + shares.window_bytes + shares.buffer_bytes + OWN_BYTES + used <= limit
        assert shares.window_bytes >= MIB
        assert shares.ram_bytes <= limit // 2
        with_ram = divide(limit, used, ram_bytes=0)
        assert with_ram.fits
        assert with_ram.window_bytes >= shares.window_bytes


def test_a_limit_that_leaves_nothing_is_refused_with_its_figures() -> None:
    with pytest.raises(ConfigError) as error:
        load_config({"source": "/d"}, limit_bytes=70 * MIB)
    assert "limit of 70 MiB" in str(error.value)
    assert "the daemon itself (64 MiB)" in str(error.value)
    assert "at least 80 MiB" in error.value.hint


def test_more_than_what_is_free_is_told_with_the_figures() -> None:
    config = load_config({"source": "/d", "ram": "200M", "staging": "100M"}, limit_bytes=400 * MIB)
    said = memory_warning(config, MemoryRoom(400 * MIB, 150 * MIB, "/sys/fs/cgroup/job/memory.high"))
    assert said is not None
    for words in ("--ram 200 MiB", "--staging 100 MiB", "250 MiB of 400 MiB is free", "job/memory.high"):
        assert words in said
    fits = load_config({"source": "/d"}, limit_bytes=400 * MIB)
    assert memory_warning(fits, MemoryRoom(400 * MIB)) is None


@pytest.mark.parametrize(
    ("flag", "value", "meant"),
    [("ram", "1.5", "1.5G"), ("ram", "64", "64G"), ("staging", "2", "2G"), ("ssd", "/tmp:500", "500G")],
)
def test_a_size_without_its_unit_is_asked_about(flag: str, value: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config({"source": "/d", flag: [value] if flag == "ssd" else value}, limit_bytes=GIB)
    assert error.value.hint == f"did you mean {meant}?"


def test_no_ram_class_and_a_single_page_are_no_mistakes() -> None:
    assert load_config({"source": "/d", "ram": "0"}, limit_bytes=GIB).ram_bytes == 0
    assert load_config({"source": "/d", "ram": "4096"}, limit_bytes=GIB).ram_bytes == 4096
