"""`mlfs simulate SCENARIO|--like MOUNT`: how long a job takes on some cluster under each policy.

In: parsed arguments. Out: a table or JSON on stdout, a picture. The work is done by `mlfs.lab.sim`. Errors leave as
MlfsError for the main program to print. Called by `mlfs.cli.commands`.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlfs.cli import client
from mlfs.cli.parser import whole
from mlfs.errors import ConfigError, ExitCode, require
from mlfs.lab.policies.policy import Policy, Unfit
from mlfs.lab.policies.registry import POLICIES, named
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.expected import expected_of_run, uneven_words
from mlfs.lab.sim.like import Like, like
from mlfs.lab.sim.run import PolicyResult, Progress, Simulation
from mlfs.lab.sim.scenario import Scenario, load, nearest_of, shipped_folder, shipped_names
from mlfs.orders.stopping import stoppable
from mlfs.shown import count_of, duration, percent, size
from mlfs.units import format_size
from mlfs.user_input import InputError, read_json

if TYPE_CHECKING:
    import numpy.typing as npt

    from mlfs.lab.sim.detailed.run import DetailedResult

_PIPE_WIDTH = 120
MOST_SEED, MOST_SHRINK = 2**63 - 1, 10**9
DETAILED_POLICY = "mlfs"

_EPILOG = """\
examples:
  mlfs simulate --list                      shipped scenarios and all policies
  mlfs simulate thesis-s2 --policy nopfs --policy mlfs
  mlfs simulate thesis-s2 --sharing paper --plot bars.png     as published; bars
  mlfs simulate my-cluster.toml --json | jq .policies.mlfs.seconds
  mlfs simulate environment-grid --policy nopfs --ram 0,10GB,20GB,40GB \\
      --ssd 0,20GB,40GB,80GB --plot map.png
  mlfs simulate thesis-s4 --shrink 50 --detailed       the nodes' schedulers
  mlfs simulate --like /data/imagenet     a job that runs, and what is expected
  mlfs simulate --like status.json --policy mlfs,lobster,nopfs

sharing: conserving (all readers of the PFS together get its bandwidth) or paper (each prefetch thread gets a node's
part of it: reproduces the published figures, and may draw more than there is). docs/simulator.md says what a scenario
holds.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Simulate a training job on a cluster under one or several policies."
    parser.epilog = _EPILOG
    parser.add_argument(
        "scenario", metavar="SCENARIO", nargs="?", help="a TOML file, or the name of a shipped scenario"
    )
    parser.add_argument(
        "--like", metavar="MOUNT", help="the job of a mount, or of a status saved as STATUS.json, instead of a scenario"
    )
    parser.add_argument("--job", metavar="NAME", help="which job of it (default: the one that reads most)")
    parser.add_argument("--list", action="store_true", help="show the shipped scenarios and the policies")
    parser.add_argument(
        "--policy", metavar="NAME", action="append", help="repeatable, or separated by commas (default: all)"
    )
    parser.add_argument(
        "--sharing", metavar="RULE", default="conserving", help="conserving or paper (default: conserving)"
    )
    parser.add_argument("--seed", metavar="N", type=whole(0, MOST_SEED), help="another seed than the scenario's")
    text = "N times fewer samples and less storage (default: 1)"
    parser.add_argument("--shrink", metavar="N", type=whole(1, MOST_SHRINK), default=1, help=text)
    parser.add_argument(
        "--detailed",
        action="store_true",
        help="run the scheduler of every node, read by read, beside the fast estimate (policy mlfs only)",
    )
    parser.add_argument("--ram", metavar="SIZES", help="a map instead of a table: sizes of the first class, with --ssd")
    parser.add_argument("--ssd", metavar="SIZES", help="sizes of the second class, for example 0,128GB,256GB")
    parser.add_argument("--plot", metavar="OUT.png", help="draw stacked bars, or with --ram and --ssd a heat map")
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and show. Raises ConfigError for anything that is not as it should be."""
    if args.list:
        return _list()
    if args.like is None and args.job is not None:
        raise ConfigError(f"--job {args.job}: a scenario has one job", "--job goes with --like MOUNT")
    if args.like is None and args.scenario is None:
        raise ConfigError("no scenario is given", f"a TOML file, or one of {', '.join(shipped_names())}")
    if args.like is not None and args.scenario is not None:
        raise ConfigError(f"--like {args.like} stands for a scenario", f"leave {args.scenario} or --like out")
    if args.plot:
        _check_plot(Path(args.plot))
    policies = _policies(args.policy or ([DETAILED_POLICY] if args.like is not None else None))
    sharing = _sharing(args.sharing)
    job = None if args.like is None else _like(args.like, args.job)
    scenario = load(args.scenario) if job is None else job.scenario
    if args.seed is not None:
        scenario = scenario.model_copy(update={"seed": args.seed})
    if args.detailed:
        return _detailed(args, scenario)
    if args.ram is not None or args.ssd is not None:
        return _map(args, scenario, policies, sharing)
    simulation, results, unfit = _simulate(scenario.shrunk(args.shrink), policies, sharing)
    beside = _beside(job, simulation, results, args.shrink)
    if args.plot:
        from mlfs.lab.plots import bars

        bars(results, f"{scenario.title or args.scenario} ({sharing.value})", Path(args.plot))
    if args.json:
        name = args.scenario or args.like
        print(json.dumps(_plain(name, sharing, results, unfit) | ({"like": beside} if beside is not None else {})))
    else:
        _table(scenario, sharing, results, unfit)
        for line in compared_lines(beside) if beside is not None else []:
            _console().print(line, highlight=False, markup=False)
    return ExitCode.OK


def _beside(
    job: Like | None, simulation: Simulation, results: Sequence[PolicyResult], shrink: int
) -> dict[str, Any] | None:
    """Figures of a job that runs, beside what is expected; None where there is none, or its policy is not."""
    found = next((result for result in results if result.policy == DETAILED_POLICY), None)
    return None if job is None or found is None else compared(job, simulation, found, shrink)


def _check_plot(path: Path) -> None:
    """Raise an MlfsError for a picture that cannot be drawn, now and not after minutes of simulating."""
    require("matplotlib", "--plot")
    try:
        os.stat(path.absolute().parent)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror}", "give another file") from None


def _policies(names: Sequence[str] | None) -> list[Policy]:
    if not names:
        return list(POLICIES.values())
    chosen = []
    for name in (part for text in names for part in text.split(",")):
        policy = named(name)
        if policy is None:
            raise ConfigError(f"no policy {name!r}", nearest_of(name, list(POLICIES)))
        chosen.append(policy)
    return list(dict.fromkeys(chosen))


def _sharing(name: str) -> Sharing:
    rules = [rule.value for rule in Sharing]
    if name not in rules:
        raise ConfigError(f"--sharing: no rule {name!r}", nearest_of(name, rules))
    return Sharing(name)


def _simulate(
    scenario: Scenario, policies: Sequence[Policy], sharing: Sharing
) -> tuple[Simulation, list[PolicyResult], dict[str, str]]:
    results, unfit = [], {}
    with _progress(len(policies) * scenario.job.epochs + 1) as step:
        simulation = _made(scenario, step)
        step("orders")
        for policy in policies:
            try:
                results.append(simulation.run(policy, sharing, _progress_of(step, policy.name)))
            except Unfit as error:
                unfit[policy.name] = str(error)
    return simulation, results, unfit


def _detailed(args: argparse.Namespace, scenario: Scenario) -> int:
    """The fast estimate of policy mlfs, and the schedulers of all nodes beside it."""
    from mlfs.lab.sim.detailed.run import Detailed

    if args.policy and [policy.name for policy in _policies(args.policy)] != [DETAILED_POLICY]:
        raise ConfigError("--detailed runs the daemon's own scheduler: policy mlfs only", "leave --policy out")
    if args.sharing != Sharing.CONSERVING.value:
        raise ConfigError("--detailed shares the PFS as it is: conserving only", "leave --sharing out")
    if args.ram is not None or args.ssd is not None or args.plot:
        raise ConfigError("--detailed draws no picture and no map", "leave --plot, --ram and --ssd out")
    scenario = scenario.shrunk(args.shrink)
    with _progress(2 * scenario.job.epochs) as step:
        simulation = _made(scenario, step)
        cluster = Detailed(simulation)  # first: one that is too large is refused before anybody waits for an estimate
        estimate = simulation.run(POLICIES[DETAILED_POLICY], Sharing.CONSERVING, _progress_of(step, "estimate"))
        detailed = cluster.run(_progress_of(step, "in detail"))
    if args.json:
        plain = {"scenario": args.scenario or args.like, "estimate": estimate.plain(), "detailed": detailed.plain()}
        print(json.dumps(plain))
    else:
        _detailed_table(scenario, estimate, detailed)
    return ExitCode.OK


def _detailed_table(scenario: Scenario, estimate: PolicyResult, detailed: DetailedResult) -> None:
    from rich.table import Table

    table = Table(title=scenario.title, title_justify="left", box=None, pad_edge=False)
    for head in ("policy mlfs", "seconds", "local", "peer", "PFS bytes", "uneven", "carried"):
        table.add_column(head, justify="left" if head == "policy mlfs" else "right")
    both: tuple[tuple[str, PolicyResult | DetailedResult, str], ...] = (
        ("estimate", estimate, ""),
        ("in detail", detailed, format_size(detailed.carried_bytes)),
    )
    for name, of, carried in both:
        shares = f"{of.local:.1%}", f"{of.peer:.1%}"
        uneven = f"{of.imbalanced_steps:.1%}"
        table.add_row(name, _seconds(of.seconds), *shares, format_size(of.pfs_bytes), uneven, carried)
    apart = int(estimate.pfs_bytes) - detailed.pfs_bytes - detailed.carried_bytes
    table.add_row("difference", f"{detailed.seconds / estimate.seconds - 1:+.2%}", "", "", f"{apart:+,} bytes", "", "")
    console = _console()
    console.print(table)
    console.print(
        f"{detailed.reads:,} reads at {detailed.reads / max(detailed.wall_s, 1e-9):,.0f} a second. carried: reads that "
        "the estimate counts at the PFS, and that found the pages of the epoch before in the staging window; the "
        "difference of PFS bytes is what is left. uneven: steps in which some GPUs wait for data and others do not. In "
        "its busiest epoch a node gave others "
        f"{max(detailed.load):.2f} times what nodes gave on average.",
        style="dim",
    )


def _progress_of(step: Any, name: str) -> Progress:
    return lambda epoch: step(f"{name}, epoch {epoch}")


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """How far it is, on standard error, of what takes longer than two seconds."""
    from mlfs.cli.progress import Progress as Shown

    done = 0
    with Shown() as shown:

        def step(text: str, ended: int = 1) -> None:
            nonlocal done
            done += ended
            shown.update({"phase": f"simulating: {done / total:.0%}, {text}"})

        yield step


def _made(scenario: Scenario, step: Any) -> Simulation:
    """The scenario with its orders, which take a while to draw."""

    def go_on() -> bool:
        step("drawing the orders", 0)
        return False

    with stoppable(go_on):
        return Simulation(scenario)


def _map(args: argparse.Namespace, scenario: Scenario, policies: Sequence[Policy], sharing: Sharing) -> int:
    """Run times of one policy over the sizes of the first two classes."""
    import numpy as np

    if len(policies) != 1:
        raise ConfigError("a map shows one policy", "name it with --policy")
    if args.ram is None or args.ssd is None or len(scenario.cluster.classes) < 2:
        raise ConfigError(
            "a map needs --ram, --ssd and a scenario with two classes", "for example --ram 0,64GB --ssd 0"
        )
    ram, ssd = args.ram.split(","), args.ssd.split(",")
    seconds = np.zeros((len(ssd), len(ram)))
    with _progress(seconds.size) as step:
        for row, column in np.ndindex(*seconds.shape):
            resized = scenario.resized([ram[column], ssd[row]]).shrunk(args.shrink)
            try:
                seconds[row, column] = Simulation(resized).run(policies[0], sharing).seconds
            except Unfit as error:
                raise ConfigError(f"{policies[0].name} cannot run with RAM {ram[column]}: {error}") from None
            step(f"RAM {ram[column]}, SSD {ssd[row]}")
    if args.plot:
        from mlfs.lab.plots import heat_map

        heat_map(seconds, ram, ssd, f"{scenario.title}: {policies[0].name} ({sharing.value})", Path(args.plot))
    if args.json:
        print(json.dumps({"policy": policies[0].name, "ram": ram, "ssd": ssd, "seconds": seconds.tolist()}))
    else:
        _show_map(ram, ssd, seconds)
    return ExitCode.OK


def _show_map(ram: list[str], ssd: list[str], seconds: npt.NDArray[Any]) -> None:
    from rich.table import Table

    table = Table("SSD \\ RAM", *ram, title="simulated seconds")
    for name, row in zip(ssd, seconds, strict=True):
        table.add_row(name, *(f"{value:.4g}" for value in row))
    _console().print(table)


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, soft_wrap=False)


def _list() -> int:
    from rich.table import Table

    scenarios = Table("scenario", "what", box=None)
    for name in shipped_names():
        scenarios.add_row(name, load(name).title)
    policies = Table("policy", "what", box=None)
    for policy in POLICIES.values():
        policies.add_row(policy.name, policy.summary)
    console = _console()
    console.print(scenarios)
    console.print(f"\nscenarios to copy lie in {shipped_folder()}\n")
    console.print(policies)
    return ExitCode.OK


def _plain(
    name: str, sharing: Sharing, results: Sequence[PolicyResult], unfit: dict[str, str]
) -> dict[str, dict[str, Any] | str]:
    return {
        "scenario": name,
        "sharing": sharing.value,
        "policies": {result.policy: result.plain() for result in results},
        "unfit": unfit,
    }


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}"


def _table(scenario: Scenario, sharing: Sharing, results: Sequence[PolicyResult], unfit: dict[str, str]) -> None:
    from rich.table import Table

    table = Table(title=f"{scenario.title} ({sharing.value} sharing)", title_justify="left", box=None, pad_edge=False)
    for head in ("policy", "seconds", "before", "stalls", "local", "peer", "PFS bytes", "least", "uneven"):
        table.add_column(head, justify="left" if head == "policy" else "right")
    for result in results:
        table.add_row(
            result.policy,
            _seconds(result.seconds),
            _seconds(result.preload_s),
            _seconds(result.stall_s),
            f"{result.local:.1%}",
            f"{result.peer:.1%}",
            format_size(result.pfs_bytes),
            format_size(result.bound_bytes),
            f"{result.imbalanced_steps:.1%}",
        )
    console = _console()
    console.print(table)
    for policy, why in unfit.items():
        console.print(f"{policy}: {why}")
    console.print(
        "before: before the first step. local, peer: share of reads. least: what must come from the PFS. uneven: "
        "steps in which some GPUs wait for data and others do not.",
        style="dim",
    )


# -- a job that really runs, measured, beside what the simulator expects of it
#
# In: a mount or a saved status; the scenario simulated. Out: numbers and lines.


def _like(given: str, name: str | None) -> Like:
    """The job of a mount, or of a status in a file (`-`: on standard input). Raises MlfsError."""
    if given != "-" and not given.endswith(".json"):
        return like(client.read_status(client.require_mount(given)), name)
    try:
        status = read_json(given)
    except OSError as error:
        raise ConfigError(f"--like {given}: {error.strerror}", "mlfs status MOUNT --json prints a status") from None
    except InputError as error:
        raise ConfigError(f"--like {given}: {error}", "mlfs status MOUNT --json prints a status") from None
    return like(status, name)


def compared(job: Like, simulation: Simulation, found: PolicyResult, shrink: int) -> dict[str, Any]:
    """Both figures of each thing that can be compared.

    Args:
        found: of the policy that mounts have. shrink: by which the scenario was shrunk, and with it times and bytes.
    """
    nodes = simulation.model.nodes
    epochs = {}
    for epoch, measured in job.measured.items():
        simulated = found.epochs[min(epoch, len(found.epochs) - 1)]
        epochs[str(epoch)] = {
            "measured": measured._asdict(),
            "simulated": {
                "seconds": simulated.seconds * shrink,
                "pfs_bytes": round(simulated.pfs_bytes * shrink / nodes),
            },
        }
    both: dict[str, Any] = {"job": job.job, "epochs": epochs, "uneven": None, "because": ""}
    loaders = job.loaders
    if job.uneven is not None and loaders is not None:
        expected = expected_of_run(simulation, loaders, job.peers_bytes_per_s)
        both["uneven"] = {
            "steps": job.steps,
            "measured": {"imbalance": job.uneven.apart, "imbalanced_steps": job.uneven.steps},
            "simulated": {"imbalance": expected.apart, "imbalanced_steps": expected.steps},
        }
        both["because"] = uneven_words(job.ranks, job.uneven, expected)
    return both


def compared_lines(both: dict[str, Any]) -> list[str]:
    """The same for people."""
    said = []
    for epoch, of in both["epochs"].items():
        was, would = of["measured"], of["simulated"]
        said.append(
            f"epoch {epoch}: measured {duration(was['seconds'])} and {size(was['pfs_bytes'])} from the source;"
            f" simulated {duration(would['seconds'])} and {size(would['pfs_bytes'])}"
        )
    if uneven := both["uneven"]:
        was, would = uneven["measured"], uneven["simulated"]
        said.append(
            f"{percent(was['imbalanced_steps'])} of the last {count_of(uneven['steps'], 'step is', 'steps are')} uneven"
            f" (imbalance {percent(was['imbalance'])}); simulated {percent(would['imbalanced_steps'])}"
            f" ({percent(would['imbalance'])})"
        )
    if both["because"]:
        said.append(both["because"])
    return said
