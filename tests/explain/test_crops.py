"""Words that random crops and flips draw, beside torch itself."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from mlfs.explain.crops import MOST_AFTER, TRIED, USUAL, Between, Crops, learned, place_after
from mlfs.orders.torch_generator import Tape

# What scripts/wild counted in PyTorch's imagenet example and in transformers' run_image_classification_no_trainer.py:
# 1,500 images of 384 x 288, seed 1; where augmentation began, and what it drew.
COUNTED = ((580, 8524), (9110, 8530), (17646, 8510), (1358844, 8436), (1367286, 8482), (1375774, 8454))


def crop_and_flip(width: int, height: int, crops: Crops) -> None:
    """torchvision.transforms.RandomResizedCrop.get_params, and what else is drawn, as torchvision draws it."""
    log_ratio = torch.log(torch.tensor((3 / 4, 4 / 3)))
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(crops.least, 1.0).item()
        ratio = torch.exp(torch.empty(1).uniform_(float(log_ratio[0]), float(log_ratio[1]))).item()
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            torch.randint(0, height - high + 1, size=(1,))
            torch.randint(0, width - wide + 1, size=(1,))
            break
    for _ in range(crops.more):
        torch.rand(1)


def drawn_by_torch(seed: int, start: int, sizes: np.ndarray, crops: Crops) -> int:
    """The place in the generator's words after the images, found by the words that come next."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.empty(start, dtype=torch.int32).random_()
        for width, height in sizes.tolist():
            crop_and_flip(width, height, crops)
        following = torch.empty(8, dtype=torch.int32).random_().numpy()
    words = Tape(seed).at(start).take(len(sizes) * 26) % np.uint32(1 << 31)
    (place,) = (at for at in range(len(words) - 8) if (words[at : at + 8] == following).all())
    return start + place


@pytest.mark.parametrize(("start", "words"), COUNTED)
def test_crops_and_flips_of_real_scripts_are_computed_to_the_word(start: int, words: int) -> None:
    sizes = np.tile(np.array([384, 288], dtype=np.int32), (1500, 1))
    assert place_after(Tape(1), start, sizes, USUAL) == start + words


@pytest.mark.parametrize("crops", [USUAL, Crops(0.25, 0), Crops(0.5, 2)])
def test_images_of_any_size_draw_as_torch_does(crops: Crops) -> None:
    draw = random.Random(f"sizes {crops}")
    sizes = np.array([(draw.randrange(1, 900), draw.randrange(1, 900)) for _ in range(300)], dtype=np.int32)
    seed, start = draw.randrange(1 << 32), draw.randrange(5000)
    assert place_after(Tape(seed), start, sizes, crops) == drawn_by_torch(seed, start, sizes, crops)


@pytest.mark.parametrize("crops", TRIED[:3])
def test_an_epoch_tells_how_a_script_crops(crops: Crops) -> None:
    draw = random.Random(f"learned {crops}")
    sizes = np.array([(draw.randrange(200, 700), draw.randrange(200, 700)) for _ in range(1500)], dtype=np.int32)
    end = place_after(Tape(5), 1000, sizes, crops)
    assert learned(Tape(5), 1000, sizes, end + 2) == Between(crops, 2)
    assert learned(Tape(5), 1000, sizes, end + 1500 + MOST_AFTER) != Between(crops, 1500 + MOST_AFTER)
    assert learned(Tape(5), 1000, sizes, 1000) is None
