"""Makes a data set of real JPEG files in ImageFolder's layout, the same bytes for the same seed.

    python scripts/make_dataset.py DIR [--files 4000] [--classes 20] [--kilobytes 110] [--seed 0]

In: a directory. Out: DIR/classNN/img_NNNNN.jpg; each class has a colour and a pattern that a small CNN can learn, under
noise that gives the files their size. A complete data set that was made with the same arguments is kept as it is, one
made with others is replaced: the file DIR.json beside it says what it was made from. A directory that has none is
somebody else's, and refused unless it is empty. Called by scripts/demo.py.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import Progress

WIDTH, HEIGHT = 384, 288
NOISE_TILES = 16
QUALITY = 95
PROCESSES = 2


class Wanted(NamedTuple):
    """What the data set is made from."""

    files: int
    classes: int
    kilobytes: int
    seed: int


def noise_tiles(seed: int) -> NDArray[np.int16]:
    """A few tiles of noise. Noise is slow to draw and quick to shift, so each image takes a tile and shifts it."""
    generator = np.random.default_rng(seed)
    return generator.integers(-48, 49, (NOISE_TILES, HEIGHT, WIDTH, 3), dtype=np.int16)


@functools.cache
def class_pattern(wanted: Wanted, label: int) -> NDArray[np.int16]:
    """The pattern of a class: a colour and stripes."""
    colour = np.random.default_rng((wanted.seed, 1 << 32, label)).integers(60, 196, 3)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    stripes = 30 * np.sin((rows * (label % 5 - 2) + columns * (label % 3 + 1)) * (0.03 + 0.01 * (label % 4)))
    return np.asarray(colour + stripes[:, :, None], dtype=np.int16)


def picture(tiles: NDArray[np.int16], wanted: Wanted, index: int) -> Image.Image:
    """Image `index`: its class's pattern under noise of its own."""
    generator = np.random.default_rng((wanted.seed, index))
    down, right = (int(n) for n in generator.integers(0, (HEIGHT, WIDTH)))
    noise = np.roll(tiles[int(generator.integers(NOISE_TILES))], (down, right), axis=(0, 1))
    pixels = class_pattern(wanted, index % wanted.classes) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "jpeg", quality=QUALITY)
    return buffer.getvalue()


def strong_enough(tiles: NDArray[np.int16], wanted: Wanted) -> NDArray[np.int16]:
    """The noise at the strength that gives a file the wanted size: found by halving on the first image."""
    low, high = 0.0, 4.0
    for _ in range(10):
        middle = (low + high) / 2
        size = len(encoded(picture((tiles * middle).astype(np.int16), wanted, 0)))
        low, high = (middle, high) if size < wanted.kilobytes * 1000 else (low, middle)
    return (tiles * high).astype(np.int16)


def path_of(directory: Path, wanted: Wanted, index: int) -> Path:
    return directory / f"class{index % wanted.classes:02d}" / f"img_{index:05d}.jpg"


def write_some(task: tuple[Path, Wanted, Sequence[int]]) -> int:
    """One process's piece of work; returns how many it wrote."""
    directory, wanted, indices = task
    tiles = strong_enough(noise_tiles(wanted.seed), wanted)
    for index in indices:
        path_of(directory, wanted, index).write_bytes(encoded(picture(tiles, wanted, index)))
    return len(indices)


def made_from(directory: Path) -> dict[str, int] | None:
    """What the data set in the directory was made from, by its note; None without a note of this script."""
    try:
        made = json.loads(note_of(directory).read_text())
    except (OSError, ValueError):
        return None
    return made if isinstance(made, dict) and made.keys() == set(Wanted._fields) else None


def is_complete(directory: Path, wanted: Wanted) -> bool:
    made = made_from(directory)
    return made == wanted._asdict() and sum(1 for _ in directory.glob("class*/*.jpg")) == wanted.files


def check_ours(directory: Path) -> None:
    """End with an error for a directory that this script has not made, as it would be removed."""
    if made_from(directory) is not None or not directory.exists():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise SystemExit(f"{directory} was not made by make_dataset.py\n  give a directory that is empty or not there")


def note_of(directory: Path) -> Path:
    """The note of a data set. It lies beside the directory, as it is no sample."""
    return directory.with_name(directory.name + ".json")


def make_dataset(directory: Path, wanted: Wanted, console: Console) -> None:
    """Make the data set unless it is there. It is written under another name first, so that it is never incomplete."""
    if is_complete(directory, wanted):
        console.print(f"data set: {wanted.files} files are there already, in {directory}")
        return
    check_ours(directory)
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for label in range(min(wanted.classes, wanted.files)):
        path_of(unfinished, wanted, label).parent.mkdir(parents=True)
    step = 200
    tasks = [(unfinished, wanted, range(n, min(n + step, wanted.files))) for n in range(0, wanted.files, step)]
    # Pool ends its processes with SIGTERM: what the caller does on that is not for them.
    pool = multiprocessing.Pool(PROCESSES, signal.signal, (signal.SIGTERM, signal.SIG_DFL))
    with pool, Progress(console=console) as progress:
        bar = progress.add_task(f"making {wanted.files} JPEGs", total=wanted.files)
        for written in pool.imap_unordered(write_some, tasks):
            progress.advance(bar, written)
    # The note is written first: a directory that has one and is not complete is made again.
    note_of(directory).write_text(json.dumps(wanted._asdict()))
    shutil.rmtree(directory, ignore_errors=True)
    os.rename(unfinished, directory)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a data set of real JPEGs in ImageFolder's layout.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--files", type=int, default=4000, help="how many (default: 4000)")
    parser.add_argument("--classes", type=int, default=20, help="in how many directories (default: 20)")
    parser.add_argument("--kilobytes", type=int, default=110, help="about how large each is (default: 110)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other pictures (default: 0)")
    args = parser.parse_args()
    wanted = Wanted(args.files, args.classes, args.kilobytes, args.seed)
    make_dataset(args.directory.absolute(), wanted, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
