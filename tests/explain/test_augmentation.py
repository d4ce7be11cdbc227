"""A script whose main process crops its images at random: its next epoch is known before anything of it is read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.explaining import BATCH, FILES, explaining, order_of, simulate
from test_going_on import drawn_job, read_epoch, validate

from mlfs.explain.augmentation import Augmentation
from mlfs.explain.crops import USUAL, Crops, place_after
from mlfs.explain.image_sizes import ImageSizes
from mlfs.job import parse_job
from mlfs.orders.torch_generator import Tape

EPOCHS, VALIDATION_FILES, VALIDATION_WORDS, OWN_WORDS = 4, 10, 2, 4
# As long as nothing has shown how a script draws, its epochs are known by their first six or seven reads.
TOLD = 7


def images(root: Path) -> Path:
    """Images to train with, each of another size, and some to validate with."""
    draw = random.Random(17)
    for part, count in (("val", VALIDATION_FILES), ("train", FILES)):
        for index in range(count):
            path = root / part / f"c{index % 2}" / f"{index:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("1", (draw.randrange(100, 300), draw.randrange(100, 300))).save(path)
    return root


def read_sizes(top: Path, paths: list[bytes]) -> np.ndarray:
    return np.array([Image.open(top / path.decode()).size for path in paths], dtype=np.int32)


class Script:
    """Reads epoch after epoch; what it draws in each shifts the next one."""

    def __init__(self, jobs: Any, true: dict[str, Any], crops: Crops | None) -> None:
        self.jobs = jobs
        self.true = dict(true)
        self.crops = crops
        self._odd = random.Random(9)

    async def epoch(self) -> int:
        """Returns how many of the reads were predicted when they came."""
        order = list(order_of(self.jobs.manifest, 0, **self.true))
        predicted = await read_epoch(self.jobs, order, 0, 10)
        await validate(self.jobs, 0, 50)
        begin = self.true["words_before"] + OWN_WORDS
        if self.crops is None:
            end = begin + 5 * FILES + self._odd.randrange(FILES)
        else:
            sizes = read_sizes(self.jobs.top, list(self.jobs.manifest.paths(order)))
            end = place_after(Tape(self.true["seed"]), begin, sizes, self.crops)
        self.true["words_before"] = end + VALIDATION_WORDS
        return predicted


@pytest.mark.parametrize(("crops", "second"), [(USUAL, FILES), (Crops(0.25, 0), FILES - TOLD), (None, FILES - TOLD)])
def test_an_unregistered_script_that_validates_is_predicted_from_the_first_read_of_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crops: Crops | None, second: int
) -> None:
    """The usual crops are taken for granted; others are learned by the second epoch; draws of another kind never."""
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    true = drawn_job(f"crops {crops}")

    async def body() -> None:
        async with explaining(tmp_path, infer=True, images=images(tmp_path / "data")) as (jobs, explainer):
            script = Script(jobs, true, crops)
            predicted = [await script.epoch() for _ in range(EPOCHS)]
            assert predicted[0] >= FILES - 40
            assert predicted[1] >= second
            assert min(predicted[2:]) >= (FILES - TOLD if crops is None else FILES), predicted
            assert explainer.statistics().inference.searches == 1
            if crops is not None:  # it goes on with its counts, from where it was found last
                told = jobs.running["inferred"].statistics().shares
                assert sorted(told) == list(range(EPOCHS if second == FILES else EPOCHS - 1))

    simulate(body)


@pytest.mark.parametrize(("crops", "third"), [(USUAL, FILES), (None, FILES - TOLD)])
def test_a_registered_script_is_predicted_to_the_last_read_once_an_epoch_has_told_how_it_crops(
    tmp_path: Path, crops: Crops | None, third: int
) -> None:
    true = drawn_job(f"registered {crops}")

    async def body() -> None:
        async with explaining(tmp_path, infer=False, images=images(tmp_path / "data")) as (jobs, _):
            await jobs.register(name="train", batch_size=BATCH, **true)
            script = Script(jobs, true, crops)
            predicted = [await script.epoch() for _ in range(EPOCHS)]
            assert predicted[0] == FILES
            assert predicted[1] >= FILES - TOLD
            assert min(predicted[2:]) >= third, predicted

    simulate(body)


def test_images_are_not_looked_into_where_nothing_was_drawn_for_them() -> None:
    """A script that draws the same few words in each epoch, and one that draws more than crops can."""
    looks: list[int] = []
    ids = np.arange(900)

    def read(entry: int, _offset: int, _size: int) -> bytes:
        looks.append(entry)
        return b""

    spec = parse_job({"name": "j", "epochs": 3, "sampler": "torch-random", "generator": "default", "seed": 5})
    augmentation = Augmentation(ImageSizes(read), spec, ids, 5, OWN_WORDS)
    assert augmentation.next_place((1000, 1006)) is None
    assert augmentation.next_place((1000, 1000 + 30 * 900)) is None
    assert not looks
    assert augmentation.next_place((1000, 1000 + 5 * 900)) is None  # no images
    assert looks
