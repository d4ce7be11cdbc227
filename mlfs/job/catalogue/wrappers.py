"""Samplers of what is built around torch, and of numpy: accelerate, HF Trainer, timm, HF datasets, Paddle."""

from typing import Final

from mlfs.job.catalogue.sampler import Sampler, fields

_ACCELERATE: Final = fields(
    "seed data_seed generator shuffle drop_last use_seedable_sampler split_batches even_batches"
    " words_before words_between words_once trailing_permutation"
)

SAMPLERS: Final[tuple[Sampler, ...]] = (
    Sampler("accelerate", "mlfs.orders.accelerate:AccelerateOrder", _ACCELERATE),
    Sampler(
        "hf-trainer",
        "mlfs.orders.accelerate:AccelerateOrder",
        _ACCELERATE,
        defaults={"seed": 42, "use_seedable_sampler": True},
    ),
    Sampler("ra-sampler", "mlfs.orders.repeat_aug:RASamplerOrder", fields("seed shuffle repeats set_epoch")),
    Sampler(
        "timm-repeat-aug",
        "mlfs.orders.repeat_aug:TimmRepeatAugOrder",
        fields("shuffle repeats selected_round selected_ratio set_epoch"),
    ),
    Sampler("numpy", "mlfs.orders.script_shuffles:NumpyOrder", fields("seed drop_last legacy reseed in_place")),
    Sampler("python-random", "mlfs.orders.script_shuffles:PythonRandomOrder", fields("seed drop_last reseed in_place")),
    Sampler("hf-datasets", "mlfs.orders.script_shuffles:HFDatasetsOrder", fields("seed reseed in_place")),
    Sampler("paddle", "mlfs.orders.paddle:PaddleOrder", fields("shuffle drop_last")),
)
