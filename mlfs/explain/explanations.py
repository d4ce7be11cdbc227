"""Makes jobs of what the search found: all registrations that give the epoch that was read, the likeliest first.

In: a finding, and the draws of torch's default generator that may have given its seed. Out: fields of jobs, and a line
for people about each. Called by `mlfs.explain.inference` and `mlfs.explain.inferred_jobs`. Several registrations give
the same first epoch; the second epoch's first reads choose between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlfs.explain.confirm import Finding
from mlfs.explain.fields import EPOCHS, JOB_NAME, Fields
from mlfs.explain.search_stages import COMMON_SEEDS, Draw

# What an epoch takes from the default generator beside its iterator's base_seed and its sampler's seed. Nothing; less,
# as workers that stay have one base_seed for all epochs; so it is with a validation loader's, too, in timm for one; a
# validation loader's base_seed in each epoch; that and its sampler's seed.
BETWEEN: tuple[dict[str, object], ...] = (
    {"words_between": 0},
    {"words_between": 0, "persistent_workers": True},
    {"words_between": 0, "words_once": 2, "persistent_workers": True},
    {"words_between": 2},
    {"words_between": 4},
)
MOST_DRAWS = 16
BASE_SEED_WORDS = SEED_WORDS = 2


def explanations(finding: Finding, draws: Sequence[Draw]) -> list[Fields]:
    """Job fields without those of the data set, the likeliest first. All give the same first epoch."""
    common = _common(finding)
    if finding.seed < 0:
        return [common | {"sampler": "sequential"} | ({"contiguous": True} if finding.contiguous else {})]
    per_epoch = common | {"sampler": "torch-distributed", "seed": finding.seed}
    same_again = per_epoch | {"set_epoch": False}
    if finding.world > 1:
        return [per_epoch, same_again]
    random = common | {"sampler": "torch-random"}
    if finding.words_before:
        shared = random | {"generator": "shared", "seed": finding.seed}
        others = ({"persistent_workers": True}, {"words_between": 2}, {"trailing_permutation": False})
        return [shared, *(shared | other for other in others)]
    own = random | {"generator": "own", "seed": finding.seed}
    once = own | {"trailing_permutation": False}  # torchdata's loader without workers, which may draw a base_seed
    chosen = [
        per_epoch,
        own,
        same_again,
        once,
        once | {"words_between": BASE_SEED_WORDS},
    ]  # by a person: a small number
    drawn = [
        random | {"generator": "default", "seed": seed, "words_before": before} | between
        for between in BETWEEN
        for seed, before in draws[:MOST_DRAWS]
    ]
    return chosen + drawn if finding.seed < COMMON_SEEDS and not draws else drawn + chosen


def continued(lost: Sequence[Fields], epoch: int, draws: Sequence[Draw]) -> list[Fields]:
    """What a script draws between two epochs, if both epochs' seeds may have been drawn from the same generator.

    Args:
        lost: explanations, by the default generator, of the epochs up to `epoch`.
        draws: that may have given the seed of the epoch after it.

    Returns:
        fields to replace those of the explanation with; none if both epochs have no generator in common.
    """
    found: list[Fields] = []
    for fields in lost:
        for seed, words in draws:
            passed = words - passed_before(fields, epoch)
            if seed == fields["seed"] and passed >= SEED_WORDS:
                found.append({"seed": seed, "words_before": words} | _step(passed))
    return [fields for at, fields in enumerate(found) if fields not in found[:at]]


def passed_before(fields: Fields, epoch: int) -> int:
    """Words that the default generator has given before an epoch: its `words_before` if it were the first."""
    before, between, once = (
        int(str(fields.get(name) or 0)) for name in ("words_before", "words_between", "words_once")
    )
    step = between + (SEED_WORDS if fields.get("persistent_workers") else BASE_SEED_WORDS + SEED_WORDS)
    return before + epoch * step + (once if epoch else 0)


def _step(words: int) -> Fields:
    """Fields of a job whose epoch takes so many words of its generator."""
    if words >= BASE_SEED_WORDS + SEED_WORDS:
        return {"words_between": words - BASE_SEED_WORDS - SEED_WORDS}
    return {"words_between": words - SEED_WORDS, "persistent_workers": True}


def _common(finding: Finding) -> Fields:
    """The fields that do not hang on how the seed came about."""
    fields: Fields = {"name": JOB_NAME, "epochs": EPOCHS, "world_size": finding.world}
    if finding.world > 1:
        # Ranks that have not read yet are taken to be here when most of the others are.
        most = 2 * len(finding.ranks) >= finding.world
        fields["ranks"] = list(range(finding.world)) if most else list(finding.ranks)
    if finding.batch is not None:
        fields["batch_size"] = finding.batch
    return fields


def in_words(fields: Fields) -> str:
    """An explanation in a line for people."""
    sampler = str(fields["sampler"])
    said = [sampler, f"seed {fields['seed']}"] if "seed" in fields else [sampler]
    if "generator" in fields:
        said.append(f"{fields['generator']} generator")
    said += [
        f"{name.replace('_', ' ')} {fields[name]}"
        for name in ("words_before", "words_between", "words_once")
        if fields.get(name)
    ]
    said += ["a piece for each rank"] if fields.get("contiguous") else []
    said += ["persistent workers"] if fields.get("persistent_workers") else []
    switches = ("set_epoch", "trailing_permutation")
    said += [f"no {name.replace('_', ' ')}" for name in switches if fields.get(name) is False]
    said.append(f"world size {fields['world_size']}")
    if "batch_size" in fields:
        said.append(f"batch size {fields['batch_size']}")
    return ", ".join(said)
