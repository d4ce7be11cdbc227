"""Which registrations a finding may stand for, the likeliest first, and what it is in words.

In: a finding, the seeds of torch's default generator that may have drawn its seed. Out: fields of jobs. Called by
`mlfs.engine.inference`. Several explanations give the same first epoch; the second epoch's first reads decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfs.infer.confirm import Finding
from mlfs.infer.search import COMMON_SEEDS

JOB_NAME = "inferred"
# Nobody told how many epochs there will be: more than anybody waits for.
EPOCHS = 1000

Fields = dict[str, object]


def explanations(finding: Finding, generator_seeds: Sequence[int]) -> list[Fields]:
    """Job fields without those of the data set, best first."""
    common = _common(finding)
    if finding.seed < 0:
        return [common | {"sampler": "sequential"}]
    per_epoch = common | {"sampler": "torch-distributed", "seed": finding.seed}
    if finding.world > 1:
        return [per_epoch]
    if finding.words_before:
        return [common | {"sampler": "torch-random", "generator": "shared", "seed": finding.seed}]
    drawn: list[Fields] = [
        common | {"sampler": "torch-random", "generator": "default", "seed": seed} for seed in generator_seeds
    ]
    own = common | {"sampler": "torch-random", "generator": "own", "seed": finding.seed}
    chosen = [per_epoch, own]  # by a person: small
    return chosen + drawn if finding.seed < COMMON_SEEDS else drawn + chosen


def _common(finding: Finding) -> Fields:
    fields: Fields = {"name": JOB_NAME, "epochs": EPOCHS, "world_size": finding.world}
    if finding.world > 1:
        # Ranks that have not read yet are taken to be here when most of the others are.
        most = 2 * len(finding.ranks) >= finding.world
        fields["ranks"] = list(range(finding.world)) if most else list(finding.ranks)
    if finding.batch is not None:
        fields["batch_size"] = finding.batch
    return fields


def in_words(fields: Fields) -> str:
    """One line for people."""
    sampler = str(fields["sampler"])
    said = [sampler] if sampler == "sequential" else [sampler, f"seed {fields['seed']}"]
    if "generator" in fields:
        said.append(f"{fields['generator']} generator")
    said.append(f"world size {fields['world_size']}")
    if "batch_size" in fields:
        said.append(f"batch size {fields['batch_size']}")
    return ", ".join(said)
