"""Width and height of images, from their first bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mlfs.explain.image_sizes import FIRST_BYTES, MOST_IMAGES, PNG, ImageSizes, Size, size_of


def encoded(width: int, height: int, kind: str, **more: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 99, 199)).save(buffer, kind, **more)
    return buffer.getvalue()


def reading(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, size: content[offset : offset + size]


@pytest.mark.parametrize(
    "content",
    [
        encoded(301, 207, "jpeg"),
        encoded(301, 207, "jpeg", progressive=True),
        encoded(301, 207, "jpeg", exif=b"Exif\0\0" + bytes(30_000)),  # what a camera writes comes first
        encoded(301, 207, "jpeg", exif=b"Exif\0\0" + bytes(FIRST_BYTES - 32)),  # the frame lies across what is read
        encoded(301, 207, "png"),
    ],
)
def test_jpeg_and_png_tell_their_size(content: bytes) -> None:
    assert size_of(reading(content)) == Size(301, 207)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"\xff\xd8" + bytes(99),
        b"\xff\xd8" + b"\xff\xe0\x00\x00" * 99,  # segments without length: an endless chain
        b"GIF89a" * 9,
        PNG + bytes(8) + bytes(4) + b"\0\0\0\5",
        PNG + bytes(8) + b"\xff" * 8,
    ],
)
def test_what_is_no_image_or_is_cut_off_or_lies_has_none(content: bytes) -> None:
    assert size_of(reading(content)) is None


def test_each_file_is_looked_into_once_and_one_that_is_no_image_says_that_none_are() -> None:
    files = [encoded(3, 4, "png"), encoded(30, 40, "jpeg"), b"text"]
    looks: list[int] = []

    def read(entry: int, offset: int, size: int) -> bytes:
        looks.append(entry)
        if entry >= len(files):
            raise FileNotFoundError
        return files[entry][offset : offset + size]

    sizes = ImageSizes(read)
    for entries, expected in (([1, 0], [[30, 40], [3, 4]]), ([0, 1, 0], [[3, 4], [30, 40], [3, 4]])):
        found = sizes.of(entries)
        assert found is not None
        assert np.array_equal(found, expected)
    assert sorted(looks) == [0, 1]
    assert sizes.of([0, 2]) is None
    assert sizes.of([0, 5]) is None
    assert sizes.of([0, -1]) is None
    assert sizes.of(range(MOST_IMAGES + 1)) is None
