"""`mlfs advise gpus|servers|batch|workers`: how many GPUs, parameter servers and workers, which mini-batch size.

In: parsed arguments from `mlfs.cli.commands`; with --from-mount the status of a mount. Out: the formula with its
numbers and the result, or JSON. mlfs.lab.sizing has the mathematics. A question that cannot be answered is a
ConfigError.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

from mlfs.cli.parser import whole
from mlfs.errors import ConfigError, ExitCode, require
from mlfs.lab.sizing import scaling
from mlfs.shown import StatusPart, number
from mlfs.units import format_duration, format_size, parse_duration, parse_size

# No kernel of Linux knows more processors (CONFIG_NR_CPUS).
MOST_PROCESSORS = 8192
# GPUs and workers: more than there are anywhere.
MOST_COUNTED = 10**9

_EPILOG = """\
examples:
  mlfs advise gpus --overhead 0.10 --gpus 4     efficiency, speed-up
  mlfs advise gpus --overhead 10% --speedup 3   how many GPUs for that
  mlfs advise gpus --efficiency 0.8 --gpus 4    the largest overhead ratio
  mlfs advise gpus --from-mount /data/imagenet --gpus 8
  mlfs advise servers --parameters 180MB --workers 4 --bandwidth 125MB \\
      --compute-time 2s
  mlfs advise batch alexnet
  mlfs advise workers --from-mount /data/imagenet       num_workers of each rank
  mlfs advise batch --example > model.toml

The overhead ratio R is T_O / T_C of one GPU: time that is not hidden behind computing, over computing time.
Source: Zou et al., Distributed Training Large-Scale Deep Architectures (2017).
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say how many GPUs, parameter servers and loader workers to take, and which mini-batch size."
    parser.epilog = _EPILOG
    questions = parser.add_subparsers(dest="question", metavar="gpus|servers|batch|workers", required=True)
    gpus = questions.add_parser(
        "gpus",
        help="efficiency, overhead or number of GPUs (Lemma 3.1)",
        description="Give --overhead or --from-mount with --gpus or --speedup, or --efficiency with --gpus.",
    )
    gpus.add_argument("--overhead", metavar="R", help="overhead ratio T_O / T_C of one GPU, 0.1 or 10%%")
    text = "take the overhead ratio from this mount's stall counters and uptime of its jobs"
    gpus.add_argument("--from-mount", metavar="MOUNT", help=text)
    gpus.add_argument("--gpus", metavar="G", type=whole(1, MOST_COUNTED), help="number of GPUs")
    gpus.add_argument("--efficiency", metavar="A", help="wanted efficiency, 0.8 or 80%%")
    gpus.add_argument("--speedup", metavar="S", type=float, help="wanted speed-up over one GPU")
    servers = questions.add_parser(
        "servers",
        help="number of parameter servers (Lemma 3.2)",
        description="Say how many parameter servers hide their traffic behind computing.",
    )
    servers.add_argument("--parameters", metavar="SIZE", required=True, help="size of the parameters, 180MB")
    servers.add_argument("--workers", metavar="N", type=whole(1, MOST_COUNTED), required=True, help="number of workers")
    servers.add_argument("--bandwidth", metavar="SIZE", required=True, help="bytes a second of one server: 125MB")
    servers.add_argument("--compute-time", metavar="TIME", required=True, help="time of one round on a worker: 2s")
    batch = questions.add_parser(
        "batch",
        help="mini-batch size and convolution algorithms (equations 1 to 6)",
        description="Find the mini-batch size and the convolution algorithms with most samples a second.",
    )
    batch.add_argument("model", metavar="MODEL.toml", nargs="?", help="a model file, or the name of a shipped one")
    batch.add_argument("--example", action="store_true", help="print a model file to start from")
    workers = questions.add_parser(
        "workers",
        help="loader workers of each rank, as a mount has seen them work",
        description="Say how many loader workers each rank should have, from what a mount has seen them do.",
    )
    workers.add_argument("--from-mount", metavar="MOUNT", required=True, help="the mount that training reads from")
    workers.add_argument("--job", metavar="NAME", help="which of its jobs (default: the one that reads most)")
    text = "how long a training step takes when its data is there (default: as far as reads tell it)"
    workers.add_argument("--step", metavar="TIME", help=text)
    text = "how many processors workers may use (default: those of this process)"
    workers.add_argument("--processors", metavar="N", type=whole(1, MOST_PROCESSORS), help=text)
    for question in (gpus, servers, batch, workers):
        question.add_argument("--json", action="store_true", help="print JSON (default: text)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer the question. Raises ConfigError for numbers that cannot be."""
    if args.question == "batch" and args.example:
        from importlib import resources

        print((resources.files("mlfs.lab.sizing") / "examples" / "alexnet.toml").read_text(), end="")
        return ExitCode.OK
    questions: dict[str, Callable[[argparse.Namespace], tuple[dict[str, Any], list[str]]]] = {
        "gpus": _gpus,
        "servers": _servers,
        "batch": _batch,
        "workers": _workers,
    }
    try:
        numbers, lines = questions[args.question](args)
    except ValueError as error:
        raise ConfigError(str(error), f"see mlfs advise {args.question} --help") from None
    print(json.dumps(_finite(numbers), indent=2) if args.json else "\n".join(lines))
    return ExitCode.OK


def _finite(value: Any) -> Any:
    """The value with null in place of infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ratio(text: str, what: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        return float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"{what}: {text!r} is not a ratio", "write 0.1 or 10%") from None


def _gpus(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    numbers: dict[str, Any] = {}
    overhead = None if args.overhead is None else _ratio(args.overhead, "--overhead")
    if args.from_mount is not None:
        if overhead is not None:
            raise ConfigError("--overhead and --from-mount exclude each other", "give one of them")
        overhead, lines = _overhead_of(args.from_mount)
    wanted = None if args.efficiency is None else _ratio(args.efficiency, "--efficiency")
    asked = [overhead is not None and args.gpus is not None, overhead is not None and args.speedup is not None]
    asked.append(wanted is not None and args.gpus is not None)
    if overhead is not None:
        numbers["overhead"] = overhead
    if asked[0] and overhead is not None:
        lines += _efficiency(numbers, overhead, args.gpus)
    if asked[1] and overhead is not None:
        lines += _for_speedup(numbers, overhead, args.speedup)
    if asked[2] and wanted is not None:
        most = scaling.most_overhead(wanted, args.gpus)
        numbers |= {"gpus": args.gpus, "efficiency_wanted": wanted, "overhead_at_most": most}
        formula = f"overhead R at most (1 - a) / (a G - 1) = (1 - {wanted:g}) / ({wanted:g} x {args.gpus} - 1)"
        any_does = f"a G = {wanted * args.gpus:g}, at most 1: any overhead R leaves {args.gpus} GPUs that efficient"
        lines.append(any_does if math.isinf(most) else f"{formula} = {most:.4f}")
    if not any(asked):
        hint = "give --overhead (or --from-mount) with --gpus or --speedup, or --efficiency with --gpus"
        raise ConfigError("too little is given to say anything", hint)
    return numbers, lines


def _efficiency(numbers: dict[str, Any], overhead: float, gpus: int) -> list[str]:
    alpha, times = scaling.efficiency(overhead, gpus), scaling.speedup(overhead, gpus)
    numbers |= {"gpus": gpus, "efficiency": alpha, "speedup": times}
    return [
        f"efficiency a = (1 + R) / (1 + G R) = (1 + {overhead:.4g}) / (1 + {gpus} x {overhead:.4g}) = {alpha:.4f}",
        f"speed-up a G = {times:.3f}; no number of GPUs reaches (1 + R) / R = {scaling.most_speedup(overhead):.4g}",
    ]


def _for_speedup(numbers: dict[str, Any], overhead: float, wanted: float) -> list[str]:
    gpus = scaling.gpus_for_speedup(overhead, wanted)
    times = scaling.speedup(overhead, gpus)
    numbers |= {"speedup_wanted": wanted, "gpus_needed": gpus, "speedup_reached": times}
    return [
        f"GPUs G = ceil(s / (1 + R - s R)) = ceil({wanted:g} / (1 + {overhead:.4g} - {wanted:g} x {overhead:.4g}))"
        f" = {gpus}; speed-up {times:.3f}"
    ]


def _overhead_of(mount: str) -> tuple[float, list[str]]:
    """R from the counters of a mount, which add up the stalls of all its ranks."""
    from mlfs.cli import client

    status = StatusPart(client.read_status(client.require_mount(mount)))
    jobs = [job for job in status.jobs if number(job.reading_s) > 0]
    if not jobs:
        raise ConfigError(f"no job has read from {mount} yet", "ask again while it trains, or give --overhead")
    job = max(jobs, key=lambda job: number(job.reading_s))
    ranks, ran, stalls = max(1, len(job.ranks)), job.reading_s, number(job.stalled_s)
    overhead = scaling.overhead_from_stalls(stalls, ran, ranks)
    share = stalls / ranks
    return overhead, [
        f"from {mount}, job {job.name}: {stalls:.3f} s of stalls of {ranks} ranks in {ran:.1f} s: "
        f"T_O = {stalls:.3f} / {ranks} = {share:.3f} s",
        f"overhead R = T_O / (T - T_O) = {share:.3f} / ({ran:.3f} - {share:.3f}) = {overhead:.4f}",
    ]


def _servers(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    size = parse_size(args.parameters, what="--parameters")
    rate = parse_size(args.bandwidth.removesuffix("/s"), what="--bandwidth")
    compute_s = parse_duration(args.compute_time, what="--compute-time")
    count = scaling.parameter_servers(size, args.workers, rate, compute_s)
    numbers = {"parameter_bytes": size, "workers": args.workers, "bandwidth_bytes_per_s": rate, "compute_s": compute_s}
    line = (
        f"parameter servers = ceil(2 S_p N_w / (B_ps T_C)) = ceil(2 x {format_size(size)} x {args.workers} / "
        f"({format_size(rate)}/s x {format_duration(compute_s)})) = {count}"
    )
    return numbers | {"servers": count}, [line]


def _batch(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from mlfs.lab.commands.advise_batch import answer
    from mlfs.lab.sizing import model_file

    require("scipy", "mlfs advise batch")
    if args.model is None:
        hint = f"give a file, or one of: {', '.join(model_file.shipped())}"
        raise ConfigError("no model is given", hint)
    return answer(model_file.load(args.model))


def _workers(args: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from mlfs.cli import client
    from mlfs.lab.commands.advise_workers import answer
    from mlfs.limits import usable_processors

    processors = usable_processors() if args.processors is None else args.processors
    step_s = None if args.step is None else parse_duration(args.step, what="--step")
    return answer(client.read_status(client.require_mount(args.from_mount)), args.job, processors, step_s)
