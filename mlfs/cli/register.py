"""`mlfs register MOUNT ...` and `mlfs unregister MOUNT [NAME]`: tell a mount what a training job will read.

In: parsed arguments, the environment (--from-env), a JSON file. Out: one JSON line on the mount's control file; on
stdout what the mount understood, and the first paths that it predicts for each rank. Called by `mlfs.cli.commands`. The
mount judges the values, not this command, so that scripts that write to the control file get the same answers.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from mlfs.errors import ConfigError, ExitCode, JobError
from mlfs.launchers import env_fields
from mlfs.printable import printable
from mlfs.user_input import InputError, read_json

_EPILOG = """\
examples:
  mlfs register /data/imagenet --sampler torch-distributed --seed 0 \\
      --epochs 90 --batch-size 64 --world-size 4 --ranks 0-3
  mlfs register /data/imagenet --name val --root val --sampler sequential \\
      --epochs 90 --batch-size 256 --world-size 1 --ranks 0
  mlfs register /data/imagenet --from-env --seed 0 --epochs 90 --batch-size 64
  mlfs register /data/imagenet --json-file job.json --resume 12:43520

Compare the first paths that are printed with what the script reads first: when they differ, the seed, the number of
ranks or the layout are not those of the script. Registering a name again replaces that job.

--from-env takes --world-size and --ranks of this node from the launcher's variables: those of torchrun (by the process,
or WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_RANK), of a process under mpirun (Open MPI, MPICH, Intel MPI), or of Slurm
(SLURM_NTASKS, SLURM_NODEID, and the tasks of the nodes; one task a rank). Flags win over the environment,
the environment over --json-file.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    from mlfs.cli.job_flags import add_job_flags

    parser.usage = "mlfs register [-h] MOUNT [--seed N] [--epochs N] ... [flags, see below]"
    parser.description = (
        "Register a training job: the mount then knows the order of all its reads and stays ahead of them."
    )
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", nargs="?", help="the mount point")
    add_job_flags(parser)
    add_origin_flags(parser)
    text = (
        "where the run goes on: EPOCH, or EPOCH:SAMPLES that all ranks have done of it; or a file with the state_dict()"
        " of a ServedSampler, StatefulDataLoader, StatefulDistributedSampler or litdata's StreamingDataLoader, as JSON"
        " (default: --start-epoch)"
    )
    parser.add_argument("--resume", metavar="PLACE", help=text)
    more = parser.add_argument_group("instead of registering")
    text = "print the JSON that would be written to the mount's control file, and stop (default: no)"
    more.add_argument("--dry-run", action="store_true", help=text)
    text = "print the JSON schema of a job, and stop (default: no)"
    more.add_argument("--schema", action="store_true", help=text)
    parser.set_defaults(run=run)


def add_origin_flags(parser: argparse.ArgumentParser) -> None:
    """Add --from-env and --json-file."""
    more = parser.add_argument_group("where the values come from")
    text = "world size and ranks from the launcher's environment (default: no)"
    more.add_argument("--from-env", action="store_true", help=text)
    text = "a JSON object with these fields, - for standard input (default: none)"
    more.add_argument("--json-file", metavar="FILE", help=text)


def add_unregister_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command that ends a job."""
    parser.description = "Forget a registered job: nothing more is fetched ahead for it. The mount goes on serving."
    parser.epilog = "examples:\n  mlfs unregister /data/imagenet\n  mlfs unregister /data/imagenet val"
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the job's name (default: the only job)")
    parser.add_argument("--name", metavar="NAME", dest="named", help="the same, as register has it (default: NAME)")
    parser.set_defaults(run=run_unregister)


def run(args: argparse.Namespace) -> int:
    """Register. Raises JobError with the field that the mount refused."""
    if args.schema:
        from mlfs.job import job_schema

        print(json.dumps(job_schema(), indent=2))
        return ExitCode.OK
    if args.mount is None:
        raise ConfigError("no mount point is given", "mlfs register /data/imagenet --seed 0 --epochs 90")
    command = {"op": "register", **job_fields(args, os.environ)}
    if args.dry_run:
        print(json.dumps(command, indent=2))
        return ExitCode.OK
    from mlfs.cli import client

    mountpoint = client.require_mount(args.mount)
    answer = client.send(mountpoint, command, give_up={"op": "give-up", "name": command.get("name", DEFAULT_NAME)})
    print("\n".join(map(printable, understood(mountpoint, answer))))
    return ExitCode.OK


def run_unregister(args: argparse.Namespace) -> int:
    """End a registered job."""
    from mlfs.cli import client

    if None not in (args.name, args.named) and args.name != args.named:
        raise ConfigError(f"two names are given: {args.name} and {args.named}", "unregister one job at a time")
    name = args.name if args.named is None else args.named
    mountpoint = client.require_mount(args.mount)
    answer = client.send(mountpoint, {"op": "unregister"} | ({} if name is None else {"name": name}))
    print(printable(f"unregistered {answer.get('unregistered', 'the job')} at {mountpoint}"))
    return ExitCode.OK


def job_fields(args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the job that were given. Flags win over the environment, and that wins over the JSON file."""
    from mlfs.cli.job_flags import given_fields
    from mlfs.job.resume import RESUME, is_place

    flags = given_fields(args)
    fields = _json_fields(args.json_file) if args.json_file is not None else {}
    if (resume := getattr(args, RESUME, None)) is not None:
        flags[RESUME] = resume if is_place(resume) else _state(resume)
    begins = {"start_epoch", "start_step", "left_off"}
    if flags.keys() & {RESUME, *begins}:  # where the run of the file began is another place
        told_anew = {RESUME, *(begins if RESUME in flags else ())}
        fields = {name: value for name, value in fields.items() if name not in told_anew}
    if args.from_env and not {"world_size", "ranks"} <= flags.keys():
        fields |= env_fields(environment)
    return fields | flags


def _json_fields(path: str) -> dict[str, Any]:
    from mlfs.job import only_fields

    fields = _json_object("--json-file", path, 'one object: {"sampler": ...}', "give a readable file, or - for stdin")
    fields.pop("op", None)  # of a file that was written for the control file itself
    return only_fields(fields)


def _state(path: str) -> dict[str, int]:
    """The few numbers of a saved state that say the place: all of it may be long, as a data set has a state too."""
    from mlfs.job.resume import place_in

    how = "EPOCH or EPOCH:SAMPLES; or in the script: json.dump(sampler.state_dict(), file), and that file"
    if not (place := place_in(_json_object("--resume", path, how, how))):
        raise JobError(f"--resume {path} says no place where a run goes on", how)
    return place


def _json_object(flag: str, path: str, if_other: str, if_unreadable: str) -> dict[str, Any]:
    try:
        value = read_json(path)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}", if_unreadable) from None
    except InputError as error:
        raise JobError(f"{flag} {path} is not valid JSON: {error}", if_other) from None
    if not isinstance(value, dict):
        raise JobError(f"{flag} {path} holds no JSON object", if_other)
    return value


DEFAULT_NAME = "train"
# Up to so many ranks are shown with what they read first; of more, so many, which is enough to compare with a script.
_MOST_SHOWN_RANKS, _SHOWN_RANKS = 4, 2


def _row_in_words(name: str) -> str:
    """A path as it is; of a row its file, and the bytes of it (mlfs.tree.samples: `Samples.name`)."""
    file, *numbers = name.rsplit("\t", 2)
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return name
    return f"{file} ({int(numbers[1]):,} bytes from {int(numbers[0]):,} on)"


def understood(mountpoint: str, answer: Mapping[str, Any]) -> list[str]:
    """The lines that say how the mount understood the job, and what it predicts."""
    said, first_paths = answer.get("job"), answer.get("first_paths")
    job: dict[str, Any] = said if isinstance(said, dict) else {}
    lines = [f"registered job {job.get('name', '-')} at {mountpoint}; understood as:"]
    shown = {
        name: _shown(value) for name, value in job.items() if value is not None and name not in ("name", "version")
    }
    if shown.get("root") == "":
        shown["root"] = "the mount itself"  # where a script reads `train` alone, its user sees here that it is not said
    width = max([12, *map(len, shown)])
    lines += [f"  {name:<{width}} {value}" for name, value in shown.items()]
    by_rank = first_paths if isinstance(first_paths, dict) else {}
    shown_ranks = list(by_rank)[: _SHOWN_RANKS if len(by_rank) > _MOST_SHOWN_RANKS else None]
    for rank in shown_ranks:
        lines.append(f"rank {rank} is predicted to read first:")
        lines += [f"  {_row_in_words(path)}" for path in by_rank[rank]]
    if left := list(by_rank)[len(shown_ranks) :]:
        where = f"{mountpoint}/.mlfs/order/{job.get('name', 'NAME')}/{job.get('start_epoch', 0)}/RANK"
        lines.append(f"the {len(left)} other ranks of this node, {left[0]} to {left[-1]}: see {where}")
    if not first_paths:
        lines.append("no reads are predicted for the ranks of this node")
    notes = answer.get("notes")
    lines += [f"note: {note}" for note in (notes if isinstance(notes, list) else [])]
    lines.append(f"how it goes: mlfs status {mountpoint}")
    return lines


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return "; ".join(f"node {item.get('node')} runs ranks {item.get('ranks')}" for item in value)
    if isinstance(value, list):
        whole = [item for item in value if isinstance(item, int)]
        if len(whole) > 2 and whole == value and whole == list(range(whole[0], whole[0] + len(whole))):
            return f"{whole[0]}-{whole[-1]}"
        return ", ".join(str(item) for item in value)
    return str(value)
