"""How many words torchvision's random crops and flips draw from torch's generator in an epoch: computed, not guessed.

Pure. In: a generator's words, where its epochs began, the sizes of their images in the order in which they were read.
Out: where the next epoch begins. Used by `mlfs.explain.augmentation`.

A loader without workers augments in the main process, from the generator that the next epoch's order is drawn from.
`torchvision.transforms.RandomResizedCrop.get_params` draws an area and a ratio, up to ten times, until the crop lies
inside the image, and then the crop's place; `RandomHorizontalFlip` draws one word. So the words that an image takes
follow from the words themselves and from the image's width and height.
Source: torchvision/transforms/transforms.py (torchvision 0.28), and aten/src/ATen/core/TransformationHelper.h
(uniform_real: the lower 24 bits of a word, torch 2.13).
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.orders.torch_generator import Tape

Sizes = npt.NDArray[np.int32]
"""Width and height of each image, in the order in which the images are read."""

TRIES = 10
LOG_RATIO = np.log(np.array([3 / 4, 4 / 3], dtype=np.float32))
FLOAT_BITS = 24
# An image takes up to 22 words and a few more: what is taken at once stays below a megabyte.
IMAGES_AT_ONCE = 1 << 10
MOST_WORDS_EACH = 2 * TRIES + 2
LEAST_WORDS_EACH = 4


class Crops(NamedTuple):
    """What augmentation draws for each image.

    Attributes:
        least: smallest share of the image that is cut out (RandomResizedCrop's scale[0]).
        more: words beside those of the crop: one for a flip.
    """

    least: float
    more: int


USUAL = Crops(0.08, 1)
"""What the examples of PyTorch and Hugging Face do, and most scripts after them."""
_LEAST = (0.08, 0.2, 0.25, 0.5, 0.3, 0.35, 0.4, 0.05, 0.1, 0.6, 0.7, 0.8)
TRIED = tuple(Crops(least, more) for more in (1, 0, 2, 3) for least in _LEAST)
# Other loaders' base_seeds: a validation loader draws two words, and there are seldom more than four of them. Sums of
# crops differ from one `Crops` to another by hundreds.
MOST_AFTER = 8


class Between(NamedTuple):
    """What is drawn from one epoch's order to the next: by augmentation, and after the epoch, by others."""

    crops: Crops
    after: int


def place_after(tape: Tape, place: int, sizes: Sizes, crops: Crops) -> int:
    """The place behind the words that these images take from `place` on."""
    for first in range(0, len(sizes), IMAGES_AT_ONCE):
        place += _words_of(tape, place, sizes[first : first + IMAGES_AT_ONCE], crops)
    return place


def _words_of(tape: Tape, place: int, sizes: Sizes, crops: Crops) -> int:
    words = tape.at(place).take(len(sizes) * (MOST_WORDS_EACH + crops.more))
    unit = (words & np.uint32((1 << FLOAT_BITS) - 1)).astype(np.float32) * np.float32(2.0**-FLOAT_BITS)
    shares = (unit * (np.float32(1) - np.float32(crops.least)) + np.float32(crops.least)).tolist()
    ratios = np.exp(unit * (LOG_RATIO[1] - LOG_RATIO[0]) + LOG_RATIO[0]).tolist()
    at = 0
    for width, height in sizes.tolist():
        for _ in range(TRIES):
            area, ratio = width * height * shares[at], ratios[at + 1]
            at += 2
            if 0 < round(sqrt(area * ratio)) <= width and 0 < round(sqrt(area / ratio)) <= height:
                at += 2
                break
        at += crops.more
    return at


def may_be_crops(images: int, words: int) -> bool:
    """Whether so many images may have drawn so many words, and others those after the last one."""
    most_more = max(crops.more for crops in TRIED)
    return LEAST_WORDS_EACH * images <= words <= (MOST_WORDS_EACH + most_more) * images + MOST_AFTER


def learned(tape: Tape, place: int, sizes: Sizes, next_begun: int) -> Between | None:
    """What was drawn in an epoch of these images, whose augmentation began at `place`; None for nothing known here.

    Args:
        next_begun: words drawn before the epoch after it.
    """
    for crops in TRIED:
        after = next_begun - place_after(tape, place, sizes, crops)
        if 0 <= after <= MOST_AFTER:
            return Between(crops, after)
    return None
