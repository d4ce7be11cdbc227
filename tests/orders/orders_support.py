"""What the tests of the orders share: jobs, manifests of trees on disk, and torchvision's own rule as the oracle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from mlfs.job import JobSpec, parse_job
from mlfs.orders.order import build_order
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def job(**fields: object) -> JobSpec:
    """A job of one epoch, unless told otherwise."""
    return parse_job({"epochs": 1, **fields})


def assert_same_order(
    n: int, library: Callable[[int, int], Iterable[int]], *, epochs_asked: Iterable[int] | None = None, **fields: object
) -> None:
    """Fail unless the order that mlfs computes for a job is the library's, in every epoch and rank.

    Args:
        n: the data set's length.
        library: (epoch, rank) -> the dataset indices that the framework hands out. Called epoch by epoch from
            `start_epoch` on, all ranks of an epoch one after another, each once: it may go on from a state.
        epochs_asked: epochs in the order in which mlfs is asked for them afterwards; by default also backwards, so that
            no epoch rests on the one before having been asked for.
        fields: of the job.
    """
    spec = job(**fields)
    epochs = range(spec.start_epoch, spec.epochs)
    expected = {(epoch, rank): list(library(epoch, rank)) for epoch in epochs for rank in spec.ranks}
    for asked in (epochs, reversed(epochs)) if epochs_asked is None else (epochs_asked,):
        order = build_order(spec, n)
        for epoch in asked:
            for rank in spec.ranks:
                stream = order.rank_stream(epoch, rank)
                assert stream.dtype == np.int64
                assert stream.tolist() == expected[epoch, rank], f"epoch {epoch}, rank {rank} of {spec.to_json()}"
                assert len(stream) <= order.stream_length(epoch)
            assert order.stream_length(epoch) >= max(len(expected[epoch, rank]) for rank in spec.ranks)


def manifest_of(root: Path | str) -> Manifest:
    """The manifest of a directory."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return scan(fd, workers=1)
    finally:
        os.close(fd)


def make_file(root: Path | str, path: str) -> None:
    """Create an empty file and the directories above it; surrogates stand for bytes that are no UTF-8."""
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "wb"):
        pass


def torchvision_samples(directory: str, extensions: tuple[str, ...] = IMG_EXTENSIONS) -> list[str]:
    """The paths of ImageFolder(directory).samples: find_classes and make_dataset of torchvision/datasets/folder.py."""
    classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    class_to_index = {class_name: index for index, class_name in enumerate(classes)}
    instances = []
    for target_class in sorted(class_to_index):
        target_directory = os.path.join(directory, target_class)
        if not os.path.isdir(target_directory):
            continue
        for root, _, fnames in sorted(os.walk(target_directory, followlinks=True)):
            for fname in sorted(fnames):
                path = os.path.join(root, fname)
                if path.lower().endswith(extensions):
                    instances.append(path)
    return instances


def entries_of(manifest: Manifest, source: str, paths: list[str]) -> list[int]:
    """The entries that the kernel opens at these paths, -1 for what is no regular file below the source."""
    top = os.path.realpath(source)
    entries = []
    for path in paths:
        real = os.path.realpath(path)
        inside = os.path.isfile(path) and real.startswith(top + "/")
        entries.append(manifest.find(os.fsencode(real[len(top) + 1 :])) if inside else -1)
    return entries
