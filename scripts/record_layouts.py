#!/usr/bin/env python3
"""Asks the real libraries which files of unpleasant trees are their samples: tests/orders/recorded_layouts/*.json.

In: names of layouts (all by default). Out: a JSON file each, with the library's version: trees, and what the library
lists, in its order. Checked against mlfs in every test run (tests/orders/test_orders_layouts_recorded.py). The same
command with another --seed, --cases and --out makes fresh cases for the live comparison (`python -m pytest -m oracle`).

    scripts/record_layouts.py                      record again what is in the repository
    scripts/record_layouts.py timm --seed 7 --cases 200 --out DIRECTORY

Names that are no UTF-8 stand as Python decodes them (PEP 383), escaped in JSON.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import tempfile
import types
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import recording

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "orders" / "recorded_layouts"

# Names that sort in different ways: around "/", by bytes, by code point, by case, by number, as prefixes of each other.
DIRECTORIES = "a|a-b|a b|a.jpg|.hidden|A|b|é|ÿ|10|9|09|a2|a10|__x|...|\u0663"
FILES = "x.jpg|x.JPG|.jpg|x.PnG|x.txt|x|é.tiff|x.jpg.gz|x1.jpg|x01.jpg|x10.jpg|x9.jpg|X9.jpg|..jpg|__y.png|.h.jpg"
MORE_FILES = "a.bmp|a.gif|a.webp|x\u0663.jpg|a.ppm|-.jpeg"
NO_UTF8 = ["\udcff", "\ue000", "\U00010000"]
LINKS = ["../b", "x.jpg", "../a/x.jpg", "nowhere"]

# A tree: path -> None for a file, the target of a link, or "|" for a pipe.
Tree = dict[str, str | None]


def draw_tree(draw: random.Random, utf8: bool) -> Tree:
    """A small tree of odd names; loops of links are left out, as no library survives them."""
    directories = DIRECTORIES.split("|") + ([] if utf8 else NO_UTF8)
    files = f"{FILES}|{MORE_FILES}".split("|") + ([] if utf8 else [f"{name}.jpg" for name in NO_UTF8])
    tree: Tree = {"b/x.jpg": None, "c/x.jpg": None}
    for _ in range(draw.randrange(40)):
        above = draw.choices(directories, k=draw.choice((0, 1, 1, 1, 2, 2, 3)))
        tree["/".join([*above, draw.choice(files)])] = None
    for at in range(draw.randrange(4)):
        below = draw.choice(("a", "c", "c/d"))
        tree[f"{below}/link{at}{draw.choice(('', '.jpg'))}"] = draw.choice(LINKS)
    if draw.random() < 0.2:
        tree["c/pipe.jpg"] = "|"
    if draw.random() < 0.3:
        tree["linked-class"] = "b"
    return {path: what for path, what in tree.items() if not any(other.startswith(path + "/") for other in tree)}


def make(root: str, tree: Tree) -> None:
    """Build a tree on disk; a file holds its own path."""
    for path, what in tree.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if what is None:
            Path(full).write_bytes(os.fsencode(path))
        elif what == "|":
            os.mkfifo(full)
        else:
            os.symlink(what, full)


def _timm() -> Callable[[str], list[str]]:
    # timm itself imports torchvision, which these files don't need.
    place = importlib.util.find_spec("timm")
    assert place is not None
    for package in ("timm", "timm.utils", "timm.data", "timm.data.readers"):
        module = sys.modules[package] = types.ModuleType(package)
        module.__path__ = [os.path.join(*(place.submodule_search_locations or []), *package.split(".")[1:])]
    reader_image_folder = importlib.import_module("timm.data.readers.reader_image_folder")
    walk = os.walk

    def by_bytes(top: str, **options: bool) -> list[tuple[str, list[str], list[str]]]:
        """os.walk over a file system whose readdir goes by the bytes of names, as that of a mount of mlfs does."""
        found = []
        _, directories, files = next(walk(top))
        for name in sorted(directories, key=os.fsencode):
            found += by_bytes(os.path.join(top, name))
        return [*found, (top, directories, sorted(files, key=os.fsencode))]

    def listing(root: str) -> list[str]:
        os.walk = by_bytes  # type: ignore[assignment]
        try:
            return [path for path, _ in reader_image_folder.find_images_and_targets(root)[0]]
        finally:
            os.walk = walk

    return listing


def _keras() -> Callable[[str], list[str]]:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    from keras.src.utils import dataset_utils, image_dataset_utils

    def listing(root: str) -> list[str]:
        formats = image_dataset_utils.ALLOWLIST_FORMATS
        paths, _, _ = dataset_utils.index_directory(root, "inferred", formats, shuffle=False, verbose=False)
        return list(paths)

    return listing


def _hf() -> Callable[[str], list[str]]:
    import datasets

    def listing(root: str) -> list[str]:
        options = {"data_dir": root, "drop_labels": True, "streaming": True, "split": "train"}
        rows = datasets.load_dataset("imagefolder", **options).cast_column("image", datasets.Image(decode=False))
        return [row["image"]["path"] for row in rows]

    return listing


def _dali() -> Callable[[str], list[str]]:
    from nvidia.dali import fn, pipeline_def

    def listing(root: str) -> list[str]:
        @pipeline_def(batch_size=1, num_threads=1, device_id=None)
        def pipeline():
            return fn.readers.file(file_root=root, name="r")[0]

        built = pipeline()
        built.build()
        paths = []
        for _ in range(built.epoch_size("r")):
            (output,) = built.run()  # source_info() cannot be had where a name is no UTF-8
            paths.append(os.path.join(root, os.fsdecode(output.at(0).tobytes())))
        return paths

    return listing


def _tf() -> Callable[[str], list[str]]:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    import tensorflow as tf

    def listing(root: str) -> list[str]:
        found = tf.data.Dataset.list_files(f"{root}/*/*", shuffle=False)
        paths = [os.fsdecode(path.numpy()) for path in found]
        return [path for path in paths if not os.path.isdir(path)]

    return listing


# Layout -> distribution, how to make its listing, whether its names must be UTF-8.
LIBRARIES: dict[str, tuple[str, Callable[[], Callable[[str], list[str]]], bool]] = {
    "timm": ("timm", _timm, False),
    "keras": ("keras", _keras, False),
    "hf-imagefolder": ("datasets", _hf, True),
    "dali": ("nvidia-dali-cuda120", _dali, False),
    "tf-list-files": ("tensorflow-cpu", _tf, False),
}


def record(layout: str, seed: int, count: int, out: Path) -> Path:
    """Write one layout's file."""
    distribution, make_listing, utf8 = LIBRARIES[layout]
    listing = make_listing()
    draw = random.Random(f"{layout} {seed}")
    cases = []
    for _ in range(count):
        tree = draw_tree(draw, utf8)
        with tempfile.TemporaryDirectory() as root:
            make(root, tree)
            if layout == "dali":  # DALI fails at a link that does not lead to what its name promises
                for path in [path for path, what in tree.items() if what and what != "|"]:
                    if not (os.path.isdir if "." not in path else os.path.isfile)(os.path.join(root, path)):
                        os.unlink(os.path.join(root, path))
                        del tree[path]
            listed = [os.path.relpath(path, root) for path in listing(root)]
        cases.append({"tree": tree, "listed": listed})
    return recording.write(out / f"{layout}.json", distribution, version(distribution), cases)


if __name__ == "__main__":
    sys.exit(recording.run(__doc__, list(LIBRARIES), 25, RECORDED, record))
