"""The part `clients` of scripts/bench: two storage benchmarks of others as clients of a mount, beside its source.

dlio_benchmark (PyPI) runs its own resnet50, unet3d and cosmoflow, scaled to 2 cores (scripts/clients/dlio),
on a slow source, on a mount of it, and on a mount that may not find out orders (`--infer off`). In: a directory to work
in. Out: a table of what it says of the accelerator's use and of throughput, with the bytes that left the source. fio
(apt) writes a tree with checksums at a source and compares it through the mount (scripts/clients/fio). Out: pass or
fail and how much was compared; at the end one byte of the source is changed, which fio has to find.

dlio_benchmark lives in an environment of its own, .venv-dlio, made by the first run. A program that is missing is said,
with what installs it, and its half is left out. A client that fails over the mount and not on the source is a fault of
mlfs: then the benchmark ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from demo import BIN, slow_source, source_counts

from benchmark.counters import must_be, settled

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "scripts/clients"
ENVIRONMENT = ROOT / ".venv-dlio"
REQUIREMENTS = SETTINGS / "dlio/requirements.txt"
DLIO = "dlio_benchmark==2.0.0"
WORKLOADS = ("resnet50", "unet3d", "cosmoflow")
SOURCE = "source"
# Flags of `mlfs mount` for each way to read; the source has no mount.
WAYS: dict[str, tuple[str, ...] | None] = {SOURCE: None, "mlfs": (), "mlfs, --infer off": ("--infer", "off")}
SPEED = argparse.Namespace(open_latency="2ms", bandwidth="100M")
RUN_TIMEOUT_S = 600.0  # of one run of a client, which takes half a minute
TAIL_LINES = 15  # of what a client printed before it failed
CHECKED_BYTES = 4096  # verify_interval of scripts/clients/fio


class Failed(Exception):
    """A client ended otherwise than well; its last lines."""


class Said(NamedTuple):
    """What dlio_benchmark says of one run, by epoch, beside what the storage says of it."""

    use_percent: list[float]
    samples_s: list[float]
    source_bytes: int = 0
    page_cache_share: float | None = None


class Job(NamedTuple):
    """A job of fio: its process' name, its error (0: none), the bytes read, in so many reads."""

    name: str
    error: int
    bytes: int
    reads: int


def clients(work: Path, data: Path, rounds: int) -> None:
    """dlio_benchmark's workloads and fio's verify through a mount, beside its source. Wanted: nothing fails"""
    faults = fio_faults(work / "fio") + dlio_faults(work / "dlio", rounds)
    if faults:
        raise SystemExit("a client failed over the mount: " + "; ".join(faults))


# dlio_benchmark


def dlio_faults(work: Path, rounds: int) -> list[str]:
    """Run its workloads, print the table. Returns what failed over the mount and not on the source."""
    program = dlio_program()
    if program is None:
        return []
    work.mkdir()
    runs: dict[tuple[str, str], list[Said]] = {}
    faults, broken = [], set()
    for workload in WORKLOADS:
        try:
            run_dlio(program, work, workload, work / "data" / workload, generate=True)
        except Failed as failure:
            print(f"  {workload} is left out: no data could be generated\n{failure}", flush=True)
            broken |= {(workload, way) for way in WAYS}
    for _ in range(rounds):
        for workload in WORKLOADS:
            for way, flags in WAYS.items():
                if (workload, SOURCE) in broken or (workload, way) in broken:
                    continue
                try:
                    said = one_run(program, work, workload, flags)
                    runs.setdefault((workload, way), []).append(said)
                    each = " ".join(f"{rate:.0f}" for rate in said.samples_s)
                    print(f"  {workload}, {way}: samples/s by epoch {each}", flush=True)
                except Failed as failure:
                    broken.add((workload, way))
                    print(f"  {workload} failed, {way}:\n{failure}", flush=True)
                    if way != SOURCE:
                        faults.append(f"{workload}, {way}")
    print("\n".join(dlio_table(runs)), flush=True)
    return faults


def dlio_program() -> Path | None:
    """Its command, installed if it is not; None where that fails, which is said."""
    program, stamp = ENVIRONMENT / "bin/dlio_benchmark", ENVIRONMENT / "requirements.txt"
    if program.exists() and stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
        return program
    pip = f"{ENVIRONMENT.name}/bin/pip install"
    steps = (
        f"{sys.executable} -m venv --clear {ENVIRONMENT.name}",
        f"{pip} -r {REQUIREMENTS.relative_to(ROOT)}",
        f"{pip} --no-deps {DLIO}",
    )
    print(f"  installing dlio_benchmark (some minutes, 3 GB): {' && '.join(steps)}", flush=True)
    for step in steps:
        done = subprocess.run(step.split(), cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            why = (done.stderr.strip() or "no message").splitlines()[-1]
            print(f"  dlio_benchmark is left out: it could not be installed by `{step}` ({why})", flush=True)
            return None
    stamp.write_text(REQUIREMENTS.read_text())
    return program


def one_run(program: Path, work: Path, workload: str, flags: Sequence[str] | None) -> Said:
    """One run over a slow source of this workload's data alone, through a new mount of it unless flags are None.

    Of this data alone, as a mount would also fetch the files of the others when it has nothing else to do.
    """
    slow = work / "slow"
    slow.mkdir(exist_ok=True)
    with ExitStack() as stack:
        root_fd = stack.enter_context(slow_source(work / "data" / workload, slow, SPEED))
        through = slow if flags is None else stack.enter_context(mount(slow, work / "mount", *flags))
        source_counts(root_fd, reset=True)
        said = parse_summary(run_dlio(program, work, workload, through))
        said = said._replace(source_bytes=source_counts(root_fd)["bytes"])
        if flags is None:
            return said
        status = settled(lambda: json.loads((through / ".mlfs/status").read_text()))
        epochs, opens = len(said.samples_s), sum(route["reads"] for route in status["reads"]["all"].values())
        files = len(list((work / "data" / workload / "train").iterdir()))
        must_be(f"{epochs} epochs of {files} files through the mount", opens >= epochs * files > 0, f"{opens} reads")
        return said._replace(page_cache_share=page_cache_share(status))


def run_dlio(program: Path, work: Path, workload: str, data: Path, generate: bool = False) -> str:
    """Its summary of a run over the data set, or of generating that."""
    output, stand_ins = work / "output", work / "bin"
    shutil.rmtree(output, ignore_errors=True)
    # It indexes each TFRecord file with a program of DALI's, whose index only DALI's loader reads.
    stand_ins.mkdir(exist_ok=True)
    index = stand_ins / "tfrecord2idx"
    if not index.exists():
        index.symlink_to(shutil.which("true") or "/bin/true")
    words = [f"workload=scaled_{workload}", f"hydra.run.dir={work / 'hydra'}"]
    words += [f"++workload.dataset.data_folder={data}", f"++workload.output.folder={output}"]
    if generate:
        words += ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
    path = {"PATH": f"{stand_ins}:{os.environ['PATH']}"}
    run([program, "--config-dir", SETTINGS / "dlio", *words], work, path)
    return "" if generate else (output / "summary.json").read_text()


def parse_summary(text: str) -> Said:
    """What summary.json says of each epoch."""
    metric = json.loads(text)["metric"]
    use, samples = metric["train_au_percentage"], metric["train_throughput_samples_per_second"]
    if len(use) < 2 or len(use) != len(samples):
        raise Failed(f"a summary of {len(use)} and {len(samples)} epochs, of which two are needed")
    return Said([float(value) for value in use], [float(value) for value in samples])


def page_cache_share(status: dict) -> float:
    """Share of all reads of files that found their pages there."""
    routes = status["reads"]["all"]
    total = sum(route["reads"] for route in routes.values())
    return routes.get("page_cache", {"reads": 0})["reads"] / total if total else 0.0


def dlio_table(runs: dict[tuple[str, str], list[Said]]) -> list[str]:
    """Medians of the rounds; a later epoch is the median of all epochs but the first."""
    lines = [
        "  | workload | through | accelerator's use, epoch 1 | later | samples/s, epoch 1 | later | of the source's"
        " | from the source | page cache |",
        "  | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (workload, way), said in runs.items():
        first_use = statistics.median(one.use_percent[0] for one in said)
        later_use = statistics.median(statistics.median(one.use_percent[1:]) for one in said)
        first = statistics.median(one.samples_s[0] for one in said)
        later = _later(said)
        source = runs.get((workload, SOURCE))
        ratio = f"{later / _later(source):.2f}" if source and way != SOURCE else ""
        bytes_ = statistics.median(one.source_bytes for one in said)
        shares = [one.page_cache_share for one in said if one.page_cache_share is not None]
        pages = f"{100 * statistics.median(shares):.0f} %" if shares else ""
        lines.append(
            f"  | {workload} | {way} | {first_use:.0f} % | {later_use:.0f} % | {first:.0f} | {later:.0f} | {ratio}"
            f" | {bytes_ / 1e6:.0f} MB | {pages} |"
        )
    return lines


def _later(said: Sequence[Said]) -> float:
    return statistics.median(statistics.median(one.samples_s[1:]) for one in said)


# fio


def fio_faults(work: Path) -> list[str]:
    """Write the tree, compare it in three ways, print the table. Returns what failed over the mount only."""
    if shutil.which("fio") is None:
        print("  fio is left out: it is not installed (apt-get install fio)", flush=True)
        return []
    tree = work / "tree"
    for name in ("small", "middle", "big"):
        (tree / name).mkdir(parents=True)
    run_fio(work, "write", tree)
    written = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    found = {SOURCE: run_fio(work, "verify", tree)}
    for way, flags in WAYS.items():
        if flags is not None:
            with mount(tree, work / "mount", *flags) as through:
                found[way] = run_fio(work, "verify", through)
    print("\n".join(fio_table(found, written)), flush=True)
    damage(sorted((tree / "middle").iterdir())[0])
    blind = [job.name for job in run_fio(work, "verify", tree) if not job.error]
    seen = f"missed by {', '.join(blind)}" if blind else "found by each job"
    print(f"  one byte of the source was changed: {seen}", flush=True)
    if blind or not passed(found[SOURCE], written):
        raise SystemExit("fio's verify proves nothing here: it fails on the source, or misses a changed byte there")
    return [f"fio's verify, {way}" for way, jobs in found.items() if not passed(jobs, written)]


def run_fio(work: Path, what: str, tree: Path) -> list[Job]:
    """What its jobs found. It ends with an error when one found a wrong block, which the jobs tell."""
    output = work / "fio.json"
    output.unlink(missing_ok=True)
    command = ["fio", "--output-format=json", f"--output={output}", SETTINGS / "fio" / f"{what}.fio"]
    try:
        done = subprocess.run(
            command, cwd=work, env=os.environ | {"TREE": str(tree)}, check=False, capture_output=True, text=True,
            timeout=RUN_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SystemExit(f"fio did not end in {RUN_TIMEOUT_S:.0f} s ({what}, {tree})") from None
    jobs = parse_fio(output.read_text()) if output.exists() else []
    if not jobs or (done.returncode and not any(job.error for job in jobs)):  # it failed, and no job says by what
        raise SystemExit(f"fio could not {what} {tree}: {done.stderr[-1000:]}")
    return jobs


def parse_fio(text: str) -> list[Job]:
    """The jobs of its JSON, before which it may print lines of words."""
    start = text.find("{\n")
    if start < 0:
        return []
    told = json.loads(text[start:])["jobs"]
    return [Job(job["jobname"], job["error"], job["read"]["io_bytes"], job["read"]["total_ios"]) for job in told]


def passed(jobs: Sequence[Job], written: int) -> bool:
    """Each job has read as many bytes as were written, and none of them was wrong."""
    return bool(jobs) and all(job.error == 0 and job.bytes == written for job in jobs)


def fio_table(found: dict[str, list[Job]], written: int) -> list[str]:
    """A line a job: what it found over each way of reading, with how many checksums it compared in how many reads."""
    lines = ["  | fio verify | " + " | ".join(found) + " |", "  | --- |" + " --- |" * len(found)]
    for jobs in zip(*found.values(), strict=True):
        cells = [
            f"{'pass' if passed([job], written) else f'FAIL (error {job.error})'},"
            f" {job.bytes // CHECKED_BYTES:,} checksums in {job.reads:,} reads"
            for job in jobs
        ]
        lines.append(f"  | {jobs[0].name} | " + " | ".join(cells) + " |")
    return lines


def damage(path: Path) -> None:
    """Change one byte in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 + CHECKED_BYTES // 2)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 1]))


# Both


@contextmanager
def mount(source: Path, mountpoint: Path, *flags: str) -> Iterator[Path]:
    """A mount with room for the whole data set, while the context lasts."""
    mountpoint.mkdir(exist_ok=True)
    mlfs("mount", source, mountpoint, "--ram", "1G", *flags)
    try:
        yield mountpoint
    finally:
        mlfs("unmount", mountpoint, "--force")


def mlfs(*words: str | Path) -> None:
    """Run the mlfs command; its failure ends the benchmark."""
    try:
        run([BIN / "mlfs", *words], ROOT)
    except Failed as failure:
        raise SystemExit(str(failure)) from None


def run(command: Sequence[str | Path], directory: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command to its end; Failed, with its last lines, if that is not a good one."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=directory, env=os.environ | (environment or {}), check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=RUN_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"    {' '.join(words[:2])}: no end after {error.timeout:.0f} s") from None
    if done.returncode:
        tail = done.stdout.splitlines()[-TAIL_LINES:]
        raise Failed("\n".join(f"    {line}" for line in [f"{' '.join(words[:2])}: {done.returncode}", *tail]))
