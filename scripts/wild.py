"""Third-party training scripts, unmodified, over mounts: what mlfs makes of them.

    scripts/wild DIRECTORY [--clients imagenet,...] [--modes registered,unregistered] [--strangers none,cp,find]
                 [--python PYTHON] [--json FILE] [--keep]

In: a directory that holds checkouts of pytorch/examples, pytorch/vision, huggingface/pytorch-image-models and
huggingface/transformers, as `git clone` names them; a Python that can run them. Nothing is fetched. Out: a table with
the agreement by epoch, after how many reads the order was found, the share of reads that was staged, and whether the
losses are those of a direct run; the exit code is 1 when losses differ or a registered client was predicted less than
it should be. Mounts, processes and files go at the end, also after Ctrl-C. The clients: scripts/wild_clients.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from make_dataset import Wanted, make_dataset
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from wild_clients import CLIENTS, Client
from wild_mount import Beside, Refused, Running, mounted, recorded, watched
from wild_report import (
    HEADINGS,
    Opened,
    Row,
    cells,
    found_after,
    losses,
    markdown,
    opens_of_client,
    registered_agreement,
    said_agreement,
    share_staged,
    training_jobs,
    true_agreement,
)

SCRIPTS = Path(__file__).parent
MODES, STRANGERS = ("registered", "unregistered"), ("none", "cp", "find")
CLASSES, KILOBYTES = 10, 30
STILL_S = 180.0  # longer than any client here needs between two lines on a busy machine
STUCK = f"the client neither read nor printed for {STILL_S:.0f} s"

console = Console(width=None if sys.stdout.isatty() else 200)


@dataclasses.dataclass
class Outcome:
    """What a client left behind: its losses, and what torch's generator had handed out at each iteration."""

    losses: list[str]
    iterations: list[dict[str, Any]]


class Wild:
    """All runs, in a work directory.

    Args:
        words: the command line. work: for everything that is made. progress: shows what is being done.
    """

    def __init__(self, words: argparse.Namespace, work: Path, progress: Progress) -> None:
        self.words = words
        self.work = work
        self.data = work / "data"
        self.model = work / "model"
        self.progress = progress
        self.bar = progress.add_task("", total=None)

    def say(self, text: str) -> None:
        self.progress.update(self.bar, description=text)

    # -- a client

    def command(self, client: Client, counted: bool) -> list[str]:
        """The command line, as a user would type it; through wild_start.py where that has something to do."""
        script = [str(self.words.directory / client.script), *shlex.split(self.filled(client.words))]
        if counted or client.seed is not None or client.without_gpu:
            script = [str(SCRIPTS / "wild_start.py"), *script]
        if client.ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(client.ranks)]
            return [self.words.python, *launcher, *script]
        return [self.words.python, *script]

    def filled(self, text: str, **more: object) -> str:
        words = self.words
        return text.format(data=self.data, model=self.model, epochs=words.epochs, workers=words.workers, **more)

    def environment(self, client: Client, place: Path, counted: bool) -> dict[str, str]:
        """The client's own: no network, no cache of others, no module of mlfs."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(place / "hf"),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TORCH_HOME": str(place / "torch"),
        }
        own |= {"WILD_WORDS": str(place / "words.jsonl")} if counted else {}
        own |= {"WILD_SEED": str(client.seed)} if client.seed is not None else {}
        own |= {"WILD_CPU": "1"} if client.without_gpu else {}
        return kept | own | dict(client.environment)

    @contextlib.contextmanager
    def client(self, client: Client, place: Path, counted: bool = False) -> Iterator[subprocess.Popen[Any]]:
        """The client, running in a directory of its own."""
        place.mkdir()
        if "{model}" in client.words:
            shutil.copytree(self.metric(), place / "accuracy")
        with (
            open(place / "client.log", "w") as log,
            Running(
                *self.command(client, counted),
                cwd=place,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(client, place, counted),
            ) as process,
        ):
            yield process

    def outcome(self, client: Client, place: Path) -> Outcome:
        """What the ended client has left."""
        found = losses((place / "client.log").read_text(errors="replace"), client.losses)
        found += [hashlib.sha256((place / name).read_bytes()).hexdigest() for name in client.outputs]
        noted = place / "words.jsonl"
        lines = noted.read_text().splitlines() if noted.exists() else []
        return Outcome(found, [json.loads(line) for line in lines])

    def direct(self, client: Client) -> Outcome | str:
        """A run without a mount; a string says why it failed."""
        place = self.work / f"{client.name}-direct"
        with self.client(client, place, counted=True) as process:
            for is_stuck in followed(process, place, lambda: 0):
                if is_stuck:
                    return STUCK
                self.say(f"{client.name}: directly")
        if process.returncode:
            return failure(place, process.returncode)
        outcome = self.outcome(client, place)
        return outcome if outcome.losses else "the client printed no losses"

    def metric(self) -> Path:
        """What Hugging Face's examples would download, made once; returns the directory of the metric."""
        metric = self.work / "accuracy"
        if not metric.exists():
            self.say("making a tiny model")
            made = [self.words.python, str(SCRIPTS / "wild_model.py"), str(self.model), str(metric)]
            done = subprocess.run(made, check=False, capture_output=True, text=True)
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
                raise Refused(f"--python {self.words.python} cannot make a model for transformers' examples: {why}")
        return metric

    # -- over a mount

    def run(self, client: Client, mode: str, stranger: str, direct: Outcome) -> Row:
        """The client over a mount of its own."""
        row = Row(client.name, mode, stranger, least=client.least)
        place = self.work / f"{client.name}-{mode}-{stranger}"
        state = self.work / f"{place.name}-mount"
        with mounted(self.data, state) as mount:
            if mode == "registered":
                told = mount(
                    "register", self.data, *shlex.split(self.filled(client.register, **words_of(direct, client.ranks)))
                )
                (state / "registered.txt").write_text(told)
            with watched(self.data, state, mount) as looks:
                with self.client(client, place) as process, Beside(stranger, self.data, self.work) as beside:
                    for is_stuck in followed(process, place, lambda: looks.reads):
                        if is_stuck:
                            row.problem = STUCK
                            break
                        beside.look(looks.reads / (self.words.files + self.words.validation_files))
                        self.say(f"{client.name}, {mode}, beside it {stranger}: {looks.reads:,} reads")
                end = json.loads(mount("status", self.data, "--json"))
        if process.returncode and not row.problem:
            row.problem = failure(place, process.returncode)
        if row.problem:
            return row
        statuses = [*looks.statuses, end]
        (state / "statuses.json").write_text(json.dumps(statuses))
        opens = [Opened(*line[1:]) for line in recorded(state)]
        mine = opens_of_client(opens, beside.pids)
        self.fill_in(row, statuses, mine)
        is_equal = self.outcome(client, place).losses == direct.losses
        row.losses = ("equal" if is_equal else "DIFFER") if client.is_seeded else "not compared"
        return row

    def fill_in(self, row: Row, statuses: list[dict[str, Any]], mine: list[bool]) -> None:
        """All that follows from the statuses and the opens."""
        end, epochs = statuses[-1], self.words.epochs
        if row.mode == "registered":
            row.agreement = registered_agreement(end, sum(mine), epochs)
        else:
            row.agreement = true_agreement(statuses, mine, epochs)
        row.said = said_agreement(end)
        row.found_after = found_after(statuses, mine)
        row.staged = share_staged(end)
        row.messages = list(end["messages"]) + [job["message"] for job in end["jobs"] if job.get("message")]
        row.spec = end["inference"].get("hypothesis", "") or json.dumps([job["spec"] for job in training_jobs(end)])


def followed(process: subprocess.Popen[Any], place: Path, so_far: Callable[[], int]) -> Iterator[bool]:
    """Several times a second until the client ends: whether neither its reads nor its output have moved for long."""
    moved, last = time.monotonic(), (0, 0)
    while process.poll() is None:
        now = (so_far(), (place / "client.log").stat().st_size)
        if now != last:
            moved, last = time.monotonic(), now
        yield time.monotonic() - moved > STILL_S
        time.sleep(0.1)


def words_of(direct: Outcome, ranks: int) -> dict[str, int]:
    """What torch's generator had handed out before the first epoch, and what others drew between the first two.

    Four words an epoch are the training loader's own: two for its sampler, two for its workers. Several ranks of
    accelerate share a generator that is seeded when their loader is prepared.
    """
    noted = direct.iterations
    drawn = [line["words"] for line in noted if line["sampler"] == "RandomSampler"]
    prepared = [line["words"] for line in noted if line["sampler"] == "prepare"]
    between = drawn[1] - drawn[0] - 4 if len(drawn) > 1 else 0
    before = prepared if ranks > 1 and prepared else drawn
    return {"words_before": before[0] if before else 0, "words_between": max(0, between)}


def failure(place: Path, code: int) -> str:
    """Why a client failed: the first exception that it printed, or its last line."""
    lines = (place / "client.log").read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception|error): ", line)]
    why = (errors[:1] or lines[-1:] or ["it printed nothing"])[0]
    return f"the client failed with exit code {code}: {why}"[:200]


# -- the whole


def wild(words: argparse.Namespace, work: Path) -> list[Row]:
    """Run all that is wanted."""
    rows: list[Row] = []
    data = work / "data"
    for name, files, seed in (("train", words.files, 0), ("val", words.validation_files, 1)):
        make_dataset(data / name, Wanted(files, CLASSES, KILOBYTES, seed), console)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        runs = Wild(words, work, progress)
        for client in (CLIENTS[name] for name in words.clients):
            direct = runs.direct(client)
            if isinstance(direct, str):
                rows.append(Row(client.name, "direct", "none", problem=direct))
                console.print(f"{client.name}: {direct}", highlight=False, markup=False)
                continue
            modes = [mode for mode in words.modes if mode != "registered" or client.register]
            for mode in modes:
                for stranger in words.strangers:
                    rows.append(runs.run(client, mode, stranger, direct))
                    console.print("  ".join(cells(rows[-1])), highlight=False, markup=False, soft_wrap=True)
    return rows


def show(rows: list[Row]) -> int:
    """The table, and what is wrong; returns the exit code."""
    table = Table(title="\nthird-party scripts over mounts")
    for heading in HEADINGS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    wrong = [(row, row.wrong()) for row in rows if row.wrong()]
    for row, why in wrong:
        print(f"wild: {row.client}, {row.mode}, beside it {row.stranger}: {why}", file=sys.stderr)
    return 1 if wrong else 0


def check(words: argparse.Namespace) -> None:
    """Refuse what cannot run. Raises Refused."""
    for what, given, known in (
        ("client", words.clients, CLIENTS),
        ("mode", words.modes, MODES),
        ("stranger", words.strangers, STRANGERS),
    ):
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            raise Refused(f"no {what} {', '.join(unknown)}; known: {', '.join(known)}")
    for flag in ("files", "validation_files", "epochs"):
        if getattr(words, flag) < 1:
            raise Refused(f"--{flag.replace('_', '-')} {getattr(words, flag)}: at least 1")
    if words.json is not None and not words.json.absolute().parent.is_dir():
        raise Refused(f"--json {words.json}: there is no directory {words.json.absolute().parent}")
    for client in (CLIENTS[name] for name in words.clients):
        if not (words.directory / client.script).is_file():
            raise Refused(f"{words.directory / client.script} is missing: client {client.name} needs this checkout")
    if shutil.which(words.python) is None:
        raise Refused(f"--python {words.python}: no such program")
    done = subprocess.run(
        [words.python, "-c", "import torch, torchvision"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it does not start"])[-1]
        raise Refused(f"--python {words.python} cannot import torch and torchvision: {why}")


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run third-party training scripts, unmodified, over mounts.")
    parser.add_argument("directory", type=Path, help="holds the checkouts: examples, vision, ...")
    text = "which of them, with commas (default: all): " + ", ".join(CLIENTS)
    parser.add_argument("--clients", type=names, default=list(CLIENTS), help=text)
    parser.add_argument("--modes", type=names, default=list(MODES), help=f"default: {','.join(MODES)}")
    text = "who else reads: none, cp (cp -r MOUNT), find (find | xargs cat); default: all of them"
    parser.add_argument("--strangers", type=names, default=list(STRANGERS), help=text)
    parser.add_argument("--python", default=sys.executable, help="runs the clients (default: the one that runs this)")
    parser.add_argument("--files", type=int, default=1500, help="training JPEGs (default: 1500)")
    parser.add_argument("--validation-files", type=int, default=200, help="and to validate with (default: 200)")
    parser.add_argument("--epochs", type=int, default=3, help="of each run (default: 3)")
    parser.add_argument("--workers", type=int, default=2, help="loading processes a rank (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--keep", action="store_true", help="leave the work directory, with logs, statuses and opens")
    words = parser.parse_args()
    words.directory = words.directory.absolute()
    return words


def main() -> int:
    words = parsed()
    me = os.getpid()

    def stop(*_: object) -> NoReturn:
        if os.getpid() != me:  # a process that makes the data set, and is to end quietly
            os._exit(0)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    work = Path(tempfile.mkdtemp(prefix="mlfs-wild-"))
    try:
        check(words)
        rows = wild(words, work)
        if words.json is not None:
            words.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")
            words.json.with_suffix(".md").write_text(markdown(rows) + "\n")
        return show(rows)
    except Refused as error:
        print(f"wild: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.print("wild: interrupted; everything is cleaned up")
        return 130
    finally:
        if words.keep:
            console.print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
