"""A training on a real Slurm of four nodes on one machine, with the prolog, batch script and epilog of scripts/slurm.

    scripts/slurm-test [--files 400] [--keep]

In: nothing; the data set is generated. Out: what was checked, line by line; exit code 0 when all holds: the nodes are
one cache (each file is opened once at the source), the loss is that of a plain training bit for bit, the epilog leaves
nothing mounted, a second job works, and a job works one of whose agents is killed. Root is needed, for Slurm's daemons.
All nodes share this machine, so each has a path of its own for its mount; on a cluster all have the same one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from demo import BIN, SCRIPTS, console, end, slow_source, source_counts, stop, work_directory
from make_dataset import Wanted, make_dataset

NODES, EPOCHS, BATCH_SIZE, SEED = 4, 3, 16, 0
JOB = f"--sampler torch-distributed --seed {SEED} --epochs {EPOCHS} --batch-size {BATCH_SIZE}"
START_TIMEOUT_S = 60.0
# Four nodes share this machine's cores, and whatever else it does: a node that has to wait for a core is not lost.
PEER_TIMEOUT_S = 10.0
JOB_TIMEOUT_S = 300.0
PORT = 17001  # of the first slurmd; the others follow
CONTROLLER_PORT = 17000


class Slurm:
    """A Slurm of this machine while the context lasts. Its files are below one directory, also its authentication's."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self.environment = os.environ | {"SLURM_CONF": str(work / "slurm.conf")}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Slurm:
        with contextlib.ExitStack() as stack:
            self._munge(stack)
            (self._work / "slurm.conf").write_text(self._configuration())
            for node in range(1, NODES + 1):
                (self._work / "spool" / f"n{node}").mkdir(parents=True)
            (self._work / "state").mkdir()
            self._start(stack, "slurmctld", "-D")
            for node in range(1, NODES + 1):
                self._start(stack, "slurmd", "-D", "-N", f"n{node}")
            wait("four idle nodes", self.is_idle)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(SystemExit):  # a job outlives the daemons of Slurm: it ends first, with its epilogs
            self.run("scancel", "--user", "root")
            wait("four idle nodes", self.is_idle)
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack, *words: str, user: str = "") -> None:
        log = open(self._work / f"started{len(list(self._work.glob('started*')))}-{words[0]}.log", "w")  # noqa: SIM115
        as_user = ["runuser", "-u", user, "--"] if user else []
        process = subprocess.Popen(
            [*as_user, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, text=True,
            env=self.environment, start_new_session=True,
        )  # fmt: skip
        stack.callback(log.close)
        stack.callback(end, process)

    def _munge(self, stack: contextlib.ExitStack) -> None:
        """Slurm's authentication, with a key and a socket of its own: what this machine has of it is left alone."""
        directory = self._work / "munge"
        directory.mkdir()
        (directory / "key").write_bytes(os.urandom(1024))
        (directory / "key").chmod(0o600)
        for path in (directory, directory / "key"):
            shutil.chown(path, "munge", "munge")
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._start(
            stack, "munged", "--foreground", "--force",
            *(f"--{flag}={directory / name}" for flag, name in files.items()), user="munge",
        )  # fmt: skip
        wait("munged", (directory / "socket").exists)

    def _configuration(self) -> str:
        host, work = socket.gethostname(), self._work
        return f"""\
ClusterName=mlfs
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={CONTROLLER_PORT}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={work}/munge/socket
CredType=cred/munge
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool/%n
SlurmctldPidFile={work}/slurmctld.pid
SlurmdPidFile={work}/slurmd.%n.pid
SlurmctldLogFile={work}/slurmctld.log
SlurmdLogFile={work}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
Prolog={work}/slurm/prolog
Epilog={work}/slurm/epilog
PrologFlags=Alloc
NodeName=n[1-{NODES}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{PORT}-{PORT + NODES - 1}] CPUs=1 RealMemory=1000
PartitionName=p Nodes=n[1-{NODES}] Default=YES State=UP
"""

    def is_idle(self) -> bool:
        """Whether no node has anything to do."""
        return self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(NODES)

    def is_over(self, job: str) -> bool:
        """Whether a job has ended."""
        state = self.run("squeue", "-h", "-j", job, "-t", "all", "-o", "%T").strip()
        return not state.startswith(("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"))

    def run(self, *words: str | Path, **more: Any) -> str:
        """A command of Slurm; returns what it printed."""
        done = subprocess.run(
            words, check=False, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, env=self.environment | more
        )
        if done.returncode:
            raise SystemExit(f"slurm-test: {words[0]} failed with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def wait(what: str, holds: Callable[[], bool], patience_s: float = START_TIMEOUT_S) -> None:
    until_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > until_s:
            raise SystemExit(f"slurm-test: {what}: not within {patience_s:g} s")
        time.sleep(0.2)


def final_loss(text: str) -> str:
    """The loss that the training printed last."""
    lines = [line for line in text.splitlines() if "final_loss" in line]
    return lines[-1].split('"')[3] if lines else "none"


def train_words(data: str = "") -> list[str]:
    words = [sys.executable, str(SCRIPTS / "train_demo.py"), "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    return [*words, "--workers", "1", "--seed", str(SEED), *([data] if data else [])]


class Checks:
    """What was checked, told line by line."""

    def __init__(self) -> None:
        self.failed = 0

    def say(self, what: str, holds: bool, seen: object = "") -> None:
        """One line."""
        self.failed += not holds
        text = f"  {'ok ' if holds else 'NOT'}  {what}" + (f": {seen}" if seen != "" else "")
        console.print(text, style="green" if holds else "bold red", highlight=False, soft_wrap=True)


def prepare(work: Path, source: Path) -> None:
    """Copy the prolog, the epilog and the batch script, and make the settings of this machine beside them."""
    shutil.copytree(SCRIPTS / "slurm", work / "slurm")
    for node in range(1, NODES + 1):
        for name in ("data", "run", "cache"):
            (work / f"n{node}" / name).mkdir(parents=True)
    (work / "slurm" / "settings").write_text(
        f"SOURCE={source}\nMOUNT={work}/$SLURMD_NODENAME/data\n"
        f"FLAGS=(--ram 200M --staging 64M --index {work}/index)\nMLFS={BIN / 'mlfs'}\n"
        f"PEERS=(--peer-timeout {PEER_TIMEOUT_S:g})\n"
        f"export PYTHONPATH={SCRIPTS.parent}\n"  # slurmd gives its scripts nothing of our environment
        f"export MLFS_RUNTIME_DIR={work}/$SLURMD_NODENAME/run XDG_CACHE_HOME={work}/$SLURMD_NODENAME/cache\n"
    )


def mounted(work: Path) -> list[str]:
    """Mount points of nodes."""
    with open("/proc/self/mountinfo") as file:
        entries = [line.split() for line in file if " - fuse.mlfs " in line]
    return [entry[4] for entry in entries if entry[3] == "/" and entry[4].startswith(str(work))]


def agents(work: Path) -> list[int]:
    """The pids of the agents of `mlfs peers` on all nodes."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            is_agent = bool(words) and (entry / "comm").read_bytes().strip() == b"mlfs-agent"
            if is_agent and any(word.startswith(os.fsencode(work)) for word in words):
                found.append(int(entry.name))
    return found


def job(slurm: Slurm, work: Path, meanwhile: Callable[[], None] = lambda: None) -> str:
    """Submit the batch script, and wait for its end and for the epilogs. Returns its output."""
    console.print("$ sbatch job.sh python scripts/train_demo.py ...", style="bold", highlight=False)
    script = work / "slurm" / "job.sh"
    flags = ["--parsable", f"--output={work}/job-%j.out", f"--nodes={NODES}", "--ntasks-per-node=1"]
    number = slurm.run(
        "sbatch", *flags, script, *train_words(), MLFS_SLURM=str(work / "slurm"), MLFS_JOB=JOB, OMP_NUM_THREADS="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29531",
    ).strip()  # fmt: skip
    meanwhile()
    wait(f"the end of job {number}", lambda: slurm.is_over(number), JOB_TIMEOUT_S)
    wait("four idle nodes", slurm.is_idle)  # the epilogs have ended
    text = (work / f"job-{number}.out").read_text()
    state = slurm.run("scontrol", "show", "job", number)
    console.print(f"  {next(word for word in state.split() if word.startswith('JobState='))}", highlight=False)
    return text


def kill_an_agent(work: Path) -> None:
    """As the machine would that runs out of memory, in the middle of the training."""
    wait("the agents of all nodes", lambda: len(agents(work)) >= NODES)
    time.sleep(8.0)
    os.kill(max(agents(work)), signal.SIGKILL)


def test(args: argparse.Namespace) -> int:
    checks = Checks()
    with work_directory(args.keep) as work:
        work.chmod(0o755)
        images, source = work / "images", work / "pfs"
        source.mkdir()
        make_dataset(images, Wanted(args.files, classes=8, kilobytes=110, seed=0), console)
        prepare(work, source)
        torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(NODES)]
        plain = subprocess.run(
            [*torchrun, *train_words(str(images))[1:]], check=True, capture_output=True, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        expected = final_loss(plain.stdout)
        console.print(f"a plain training, without Slurm and mlfs: final loss {expected}", highlight=False)
        with slow_source(images, source, args) as root_fd, Slurm(work) as slurm, unmounted(work):
            console.print(slurm.run("sinfo"), highlight=False)
            for what in ("a job", "a second job", "a job one of whose agents is killed"):
                killing = "killed" in what
                console.print(f"\n{what}", style="bold")
                source_counts(root_fd, reset=True)
                text = job(slurm, work, (lambda: kill_an_agent(work)) if killing else (lambda: None))
                opens = source_counts(root_fd)["by_path"]
                checks.say("the loss is equal bit for bit", final_loss(text) == expected, final_loss(text))
                if not killing:
                    again = sum(opens.values()) - len(opens)
                    checks.say("all files were opened at the source", len(opens) == args.files, len(opens))
                    checks.say("each once, in all epochs on all nodes", not again, f"{again} opened again")
                checks.say("nothing is mounted any more", not mounted(work), mounted(work))
                if final_loss(text) != expected:
                    console.print(text, highlight=False, markup=False)
    return 1 if checks.failed else 0


@contextlib.contextmanager
def unmounted(work: Path) -> Iterator[None]:
    """Whatever happens, nothing stays mounted."""
    try:
        yield
    finally:
        for path in mounted(work):
            environment = os.environ | {"MLFS_RUNTIME_DIR": str(Path(path).parent / "run")}
            subprocess.run(
                [BIN / "mlfs", "unmount", path, "--force"], check=False, capture_output=True, env=environment
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on a Slurm of four nodes on this machine, with mlfs.")
    parser.add_argument("--files", type=int, default=400, help="JPEGs of about 110 kB (default: 400)")
    parser.add_argument("--open-latency", default="1ms", help="of the source (default: 1ms)")
    parser.add_argument("--bandwidth", default="100M", help="of the source, bytes/s for all reads (default: 100M)")
    parser.add_argument("--keep", action="store_true", help="leave the work directory, with data set and logs")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("slurm-test: Slurm's daemons need root here\n  run it as root, or with sudo")
    signal.signal(signal.SIGTERM, stop)
    try:
        return test(args)
    except KeyboardInterrupt:
        console.print("slurm-test: interrupted; everything is cleaned up")
        return 130


if __name__ == "__main__":
    sys.exit(main())
