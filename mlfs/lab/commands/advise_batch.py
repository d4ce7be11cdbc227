"""Prints the memory of a network, and the batch size and algorithms that train fastest: `mlfs advise batch`.

In: a checked model file. Out: numbers and lines. Called by mlfs.lab.commands.advise. ValueError for a model that does
not fit.
"""

from __future__ import annotations

from typing import Any

from mlfs.lab.sizing.batch import Choice, best, bound_bits, choose, classifier_bits, feature_map_bits, parameter_bits
from mlfs.lab.sizing.model_file import ModelFile
from mlfs.units import format_size


def answer(model: ModelFile) -> tuple[dict[str, Any], list[str]]:
    """The numbers, and the formula with the numbers in it."""
    network, gpu_bits = model.network, model.gpu_memory * 8
    _check_fits_at_one(model)
    batches = sorted(model.batches)
    choices = [choose(network, batch, gpu_bits, model.options(batch)) for batch in batches]
    if not any(choice.fits for choice in choices):
        raise ValueError(f"{model.name}: at a batch of {batches[0]} no choice of algorithms fits; try smaller batches")
    chosen = best(choices)
    numbers = {
        "model": model.name,
        "gpu_memory_bytes": model.gpu_memory,
        "parameters_bytes": parameter_bits(network) // 8,
        "classifier_bytes": classifier_bits(network) // 8,
        "batches": [_row(model, choice) for choice in choices],
        "batch": chosen.batch,
    }
    return numbers, [*_formula(model, chosen), "", *_table(model, choices, chosen)]


def _check_fits_at_one(model: ModelFile) -> None:
    left = bound_bits(model.network, 1, model.gpu_memory * 8)
    if left < 0:
        raise ValueError(
            f"{model.name} does not fit {format_size(model.gpu_memory)} even at a batch of 1: "
            f"{format_size(-left / 8)} too much"
        )


def _row(model: ModelFile, choice: Choice) -> dict[str, Any]:
    return {
        "batch": choice.batch,
        "feature_maps_bytes": feature_map_bits(model.network, choice.batch) // 8,
        "bound_bytes": choice.bound_bits // 8,
        "fits": choice.fits,
        "seconds": choice.seconds,
        "samples_per_s": choice.samples_per_s,
        "algorithms": {
            part.name: option.algorithm for part, option in zip(model.convolutions, choice.options, strict=False)
        },
    }


def _formula(model: ModelFile, chosen: Choice) -> list[str]:
    network, batch = model.network, chosen.batch
    parts = [
        ("M_FM = sum B_i H_i D_i X 32", feature_map_bits(network, batch)),
        ("M_MP = sum (F_i F_i D_(i-1) + 1) K_i 3 x 32", parameter_bits(network)),
        ("M_C  = sum L_j 32 + sum L_j L_(j+1) 3 x 32 + (m-1) 3 x 32", classifier_bits(network)),
    ]
    lines = [f"{model.name} at a batch of X = {batch}:"]
    lines += [f"  {text} = {format_size(bits / 8)}" for text, bits in parts]
    terms = " - ".join(format_size(bits / 8) for _, bits in parts)
    bound = format_size(chosen.bound_bits / 8)
    used = format_size(sum(option.memory_bits for option in chosen.options) / 8)
    return [
        *lines,
        f"  M_bound = M_GPU - M_FM - M_MP - M_C = {format_size(model.gpu_memory)} - {terms} = {bound}",
        f"  minimise sum x_kl T_kl with sum x_kl M_kl <= M_bound: {1000 * chosen.seconds:.2f} ms with {used}",
    ]


def _table(model: ModelFile, choices: list[Choice], chosen: Choice) -> list[str]:
    lines = [f"{'batch':>6} {'M_bound':>10} {'ms':>9} {'samples/s':>10}  algorithms"]
    for choice in choices:
        bound = format_size(choice.bound_bits / 8)
        if not choice.fits:
            lines.append(f"{choice.batch:>6} {bound:>10} {'-':>9} {'-':>10}  does not fit")
            continue
        names = " ".join(f"{p.name}:{o.algorithm}" for p, o in zip(model.convolutions, choice.options, strict=True))
        mark = "  <- fastest" if choice is chosen else ""
        numbers = f"{1000 * choice.seconds:>9.2f} {choice.samples_per_s:>10.0f}"
        lines.append(f"{choice.batch:>6} {bound:>10} {numbers}  {names}{mark}")
    return lines
