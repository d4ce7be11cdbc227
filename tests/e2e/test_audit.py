"""`mlfs audit` on a real mount: ranks that a launcher has started read in the same order in each epoch, and it is said.

That it says nothing of scripts which are right is looked at where their libraries read: test_frameworks_torch,
test_frameworks_other, test_torch_script.

`mlfs audit --source DIR -- COMMAND` runs a command over a mount of its own: signals reach it, and nothing is left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support import mounts
from support.fuse import fuse_mounts, kill, processes_with, require_fuse, wait_until
from support.mounts import MlfsMount
from support.trees import make_classes

from mlfs.cli import main as cli
from mlfs.cli import status as status_command
from mlfs.errors import ExitCode

FILES, RANKS, EPOCHS = 240, 2, 3
RANK = """
import os, random, sys, time
root, epochs, seeded = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "seeded"
files = sorted(os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names)
for epoch in range(epochs):
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
    order = random.Random(epoch if seeded else 0).sample(files, len(files))
    for path in order[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]:
        with open(path, "rb") as file:
            file.read()
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small files in class directories."""
    return make_classes(tmp_path / "images", FILES, 3, lambda index: index.to_bytes(4, "big") * 100)


def launch(mount: MlfsMount, kind: str) -> None:
    """Run all ranks to their ends."""
    command = [sys.executable, "-c", RANK, str(mount.path), str(EPOCHS), kind]
    # The silent channel tells of a file that a process opens twice within some milliseconds once, and these epochs take
    # no longer: each is told before the next one begins.
    pause = {"PAUSE_S": "0.2" if mounts.CHANNEL == "silent" else "0"}
    own = [os.environ | pause | {"RANK": str(rank), "WORLD_SIZE": str(RANKS)} for rank in range(RANKS)]
    ranks = [subprocess.Popen(command, env=environment) for environment in own]
    assert [rank.wait(60) for rank in ranks] == [0] * RANKS


def test_an_order_that_each_epoch_repeats_is_said(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MlfsMount(images) as mount:
        assert cli.main(["audit", str(mount.path)]) == ExitCode.OK
        assert capsys.readouterr().out == "nothing was read yet\n"
        launch(mount, "once")
        found = mount.findings()
        assert cli.main(["audit", str(mount.path)]) == ExitCode.AUDIT
        said = capsys.readouterr().out
        assert cli.main(["audit", str(mount.path), "--json"]) == ExitCode.AUDIT
        audit = json.loads(capsys.readouterr().out)
        page = images.parent / "report.html"
        assert cli.main(["report", str(mount.path), str(page)]) == ExitCode.OK
        status = mount.status()
    assert "same-order-each-epoch: all 3 epochs" in page.read_text()
    epochs = [line.strip() for line in said.splitlines() if line.startswith("  epoch ")]
    assert len(epochs) == sum(len(job["epochs"]) for job in audit["jobs"]) >= EPOCHS
    for line in epochs:
        assert f"<li>{line}</li>" in page.read_text()
        assert re.fullmatch(r"epoch \d: .* by one rank.*; shuffled by (9\d|100)\.\d %", line)
    assert status["audit"] == audit
    assert epochs[-1] in "\n".join(map(str, status_command.render(status).renderables))
    assert any(said.startswith("same-order-each-epoch") for said in status["messages"])
    assert "the order of reads is not" not in status["headline"]
    assert [sentence.partition(":")[0] for sentence in found] == ["same-order-each-epoch"]
    assert "to mend it: call sampler.set_epoch(epoch) before each epoch" in said
    assert [finding["kind"] for finding in audit["findings"]] == ["same-order-each-epoch"]
    assert sum(epoch["by_one"] for job in audit["jobs"] for epoch in job["epochs"]) == EPOCHS * FILES


def test_nothing_is_said_of_epochs_that_are_shuffled(images: Path) -> None:
    with MlfsMount(images) as mount:
        launch(mount, "seeded")
        assert mount.findings() == []


def test_a_strict_mount_says_so_while_nobody_asks(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = images.parent / "log"
    with MlfsMount(images, "--strict-order", "--log-file", str(log)) as mount:
        assert mount.status()["audit"] == {
            "jobs": [],
            "findings": [],
            "forgotten": 0,
            "unknown": 0,
            "strict_order": True,
        }
        launch(mount, "once")
        wait_until(lambda: bool(mount.status()["audit"]["findings"]))
        status = mount.status()
        assert cli.main(["audit", str(mount.path)]) == ExitCode.STRICT_ORDER
    assert status["headline"].startswith("the order of reads is not as it should be: all 3 epochs of rank ")
    assert any(said.startswith("same-order-each-epoch: all 3 epochs") for said in status["messages"])
    headline = next(iter(status_command.render(status).renderables))
    assert headline.style == "bold red"
    [said] = [line for line in log.read_text().splitlines() if "same-order-each-epoch" in line]
    assert " ERROR " in said


# -- a command over a mount of its own

MARK = "MLFS_TEST_OF_AUDIT"
# Only who has this one may have root in a user namespace of its own (user_namespaces(7)).
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"]
UNTIL_TOLD = """
import os, signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
os.listdir(sys.argv[1])
print("waits", flush=True)
signal.pause()
"""


class Audits:
    """Runs the command. Attributes: source: what is read."""

    def __init__(self, directory: Path) -> None:
        require_fuse()
        self.source = make_classes(directory / "images", FILES, 3, lambda index: index.to_bytes(4, "big") * 100)
        self.mark = uuid.uuid4().hex
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        places = {"XDG_CACHE_HOME": str(directory / "cache"), "TMPDIR": str(self.temporary)}
        self.env = os.environ | places | {MARK: self.mark, "RANK": "0", "WORLD_SIZE": "1"}

    def start(self, *words: str, within: Sequence[str] = (), flags: Sequence[str] = ()) -> subprocess.Popen[str]:
        source = [] if str(self.source) in words else ["--source", str(self.source)]
        mlfs = [sys.executable, "-m", "mlfs.cli.main", "audit", *flags, *source, "--", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen([*within, *mlfs], env=self.env, stdout=pipe, stderr=pipe, text=True)

    def run(self, kind: str, within: Sequence[str] = (), flags: Sequence[str] = ()) -> tuple[int, str, str]:
        """The exit code, and what was printed."""
        script = RANK + "print('I am', os.getuid())\n"
        command = self.start(
            sys.executable, "-c", script, str(self.source), str(EPOCHS), kind, within=within, flags=flags
        )
        out, err = command.communicate(timeout=120)
        return command.returncode, out, err

    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        mounted = [mount for mount in fuse_mounts() if str(self.source) in mount.path]
        return not (mounted or processes_with(MARK, self.mark) or list(self.temporary.iterdir()))


@pytest.fixture
def audits(tmp_path: Path) -> Iterator[Audits]:
    audits = Audits(tmp_path)
    yield audits
    left = processes_with(MARK, audits.mark)
    for process in left:
        kill(process)
    assert not left


def test_a_command_is_audited(audits: Audits) -> None:
    code, out, err = audits.run("once")
    assert code == ExitCode.AUDIT, err
    assert "I am 0" in out
    assert "same-order-each-epoch" in out
    assert audits.is_over()
    code, out, err = audits.run("seeded", flags=["--json"])
    assert (code, "I am 0" in err) == (ExitCode.OK, True), err
    audit = json.loads(out)
    assert audit["findings"] == []
    assert sum(epoch["by_one"] for job in audit["jobs"] for epoch in job["epochs"]) == EPOCHS * FILES


def test_what_a_group_may_read_is_read_in_a_user_namespace(audits: Audits) -> None:
    for directory, _, names in os.walk(audits.source):
        for name in names:
            path = os.path.join(directory, name)
            os.chown(path, 4241, 4242)
            os.chmod(path, 0o040)
    code, out, err = audits.run("once", within=[*WITHOUT_RIGHTS, "--groups", "4242"])
    assert code == ExitCode.AUDIT, err
    assert "I am 0" in out
    assert audits.is_over()


def test_where_no_user_namespace_is_to_be_had_it_is_refused(audits: Audits) -> None:
    none = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"', "sh"]
    code, out, err = audits.run("once", within=[*none, *WITHOUT_RIGHTS])
    assert (code, out) == (ExitCode.NOT_PERMITTED, "")
    assert err.splitlines()[-1].startswith("mlfs: COMMAND cannot have a mount of its own here")
    assert f"mlfs audit {audits.source}" in err


def test_the_exit_code_is_the_commands_where_it_fails(audits: Audits) -> None:
    cat = audits.start("sh", "-c", f"cat {audits.source}/*/* > {os.devnull}; exit 3")
    out, err = cat.communicate(timeout=120)
    assert cat.returncode == 3, err
    assert f"{FILES} samples" in out
    nothing = audits.start("true")
    out, err = nothing.communicate(timeout=120)
    assert (nothing.returncode, out) == (ExitCode.FAILURE, "nothing was read yet\n"), err
    assert "COMMAND has read nothing of" in err
    missing = audits.start("no-such-command")
    out, err = missing.communicate(timeout=120)
    assert (missing.returncode, "there is no command no-such-command" in err) == (ExitCode.USAGE, True)
    no_script = audits.start(next(str(file) for file in audits.source.rglob("*") if file.is_file()))
    out, err = no_script.communicate(timeout=120)
    assert (no_script.returncode, "is not executable" in err) == (ExitCode.USAGE, True)
    assert audits.is_over()


def test_a_signal_is_the_commands(audits: Audits) -> None:
    command = audits.start(sys.executable, "-c", UNTIL_TOLD, str(audits.source))
    assert command.stdout is not None
    assert command.stdout.readline() == "waits\n"
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=120)
    assert command.returncode == 7
    assert audits.is_over()


def test_nothing_is_left_of_one_that_is_killed(audits: Audits) -> None:
    command = audits.start(sys.executable, "-c", UNTIL_TOLD, str(audits.source))
    assert command.stdout is not None
    assert command.stdout.readline() == "waits\n"
    command.kill()
    command.communicate(timeout=120)
    wait_until(audits.is_over)


def test_the_next_one_ends_what_is_left_where_the_process_that_mounts_was_killed(audits: Audits) -> None:
    other = make_classes(audits.temporary.parent / "labels", FILES, 3, lambda index: b"label")
    command = audits.start(sys.executable, "-c", UNTIL_TOLD, str(audits.source))
    assert command.stdout is not None
    assert command.stdout.readline() == "waits\n"
    mounts = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    kill(int(mounts[0]))
    command.communicate(timeout=120)
    assert not audits.is_over()
    words = ["sh", "-c", f"cat {audits.source}/*/* {other}/*/* > {os.devnull}"]
    out, err = audits.start(*words, flags=["--json", "--source", str(other)]).communicate(timeout=120)
    assert {job["source"] for job in json.loads(out)["jobs"]} == {str(audits.source), str(other)}, err
    assert audits.is_over()
