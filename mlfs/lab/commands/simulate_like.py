"""A job that really runs, measured, beside what the simulator expects of it: what `mlfs simulate --like` says besides.

In: a mount or a saved status; the scenario simulated. Out: numbers and lines. Called by `mlfs.lab.commands.simulate`.
"""

from __future__ import annotations

from typing import Any

from mlfs.cli import client
from mlfs.errors import ConfigError
from mlfs.lab.sim.expected import expected_of_run
from mlfs.lab.sim.like import Like, like
from mlfs.lab.sim.result import PolicyResult
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.uneven import uneven_words
from mlfs.shown import count_of, duration, percent, size
from mlfs.user_input import InputError, read_json


def read(given: str, name: str | None) -> Like:
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


def beside(job: Like, simulation: Simulation, found: PolicyResult, shrink: int) -> dict[str, Any]:
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
    compared: dict[str, Any] = {"job": job.job, "epochs": epochs, "uneven": None, "because": ""}
    loaders = job.loaders
    if job.uneven is not None and loaders is not None:
        expected = expected_of_run(simulation, loaders, job.peers_bytes_per_s)
        compared["uneven"] = {
            "steps": job.steps,
            "measured": {"imbalance": job.uneven.apart, "imbalanced_steps": job.uneven.steps},
            "simulated": {"imbalance": expected.apart, "imbalanced_steps": expected.steps},
        }
        compared["because"] = uneven_words(job.ranks, job.uneven, expected)
    return compared


def lines(compared: dict[str, Any]) -> list[str]:
    """The same for people."""
    said = []
    for epoch, of in compared["epochs"].items():
        was, would = of["measured"], of["simulated"]
        said.append(
            f"epoch {epoch}: measured {duration(was['seconds'])} and {size(was['pfs_bytes'])} from the source;"
            f" simulated {duration(would['seconds'])} and {size(would['pfs_bytes'])}"
        )
    if uneven := compared["uneven"]:
        was, would = uneven["measured"], uneven["simulated"]
        said.append(
            f"{percent(was['imbalanced_steps'])} of the last {count_of(uneven['steps'], 'step is', 'steps are')} uneven"
            f" (imbalance {percent(was['imbalance'])}); simulated {percent(would['imbalanced_steps'])}"
            f" ({percent(would['imbalance'])})"
        )
    if compared["because"]:
        said.append(compared["because"])
    return said
