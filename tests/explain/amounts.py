"""Words that augmentation in the main process draws from torch's generator: another number in each epoch."""

from __future__ import annotations

import random


def words_of_crops(images: int, rng: random.Random, accepted: float, tries: int = 10) -> int:
    """What random crops and flips of so many images draw.

    torchvision.transforms.RandomResizedCrop.get_params draws an area and a ratio up to ten times, until the crop fits,
    then its place; RandomHorizontalFlip draws one word.

    Args:
        accepted: how likely a try fits.
    """
    words = 0
    for _ in range(images):
        tried = next((number for number in range(1, tries) if rng.random() < accepted), tries)
        words += 2 * tried + 3
    return words
