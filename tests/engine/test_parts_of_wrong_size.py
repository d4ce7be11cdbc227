"""Parts of files whose size at the source is not the number of their bytes: the kernel would cut or pad them."""

from __future__ import annotations

import errno
import os
import random
from contextlib import closing
from pathlib import Path

import pytest
from fakes import FakePages, no_names
from support.slow import LyingSource
from support.trees import content, make_tree

from mlfs.engine.fetch import Fetcher
from mlfs.places.place import Places, SourcePlace
from mlfs.places.posix import PosixSource
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan


def never(*args: object) -> None:
    raise AssertionError


@pytest.mark.promise("lies-size")
def test_no_part_is_pushed_or_given_under_a_size_that_is_wrong(tmp_path: Path) -> None:
    draw = random.Random(7)
    names = [f"{number}" for number in range(6)]
    with LyingSource(make_tree(tmp_path / "backing", dict.fromkeys(names, 5000))) as lying:
        for name in names[1:]:
            lying.lie(name, size=draw.choice([-1, -2000, 1, 5000]))
        fd = os.open(lying.path, os.O_RDONLY | os.O_DIRECTORY)
        manifest = scan(fd, workers=1)
        samples, pages = Samples.in_blocks(manifest, 2900, 2500), FakePages()
        with closing(PosixSource(fd, manifest)) as source:
            fetcher = Fetcher(samples, source, Places(SourcePlace(source, samples)), pages, never, *no_names(source))
            for name in draw.sample(names[1:], 5):
                entry = manifest.find(name.encode())
                for sample in samples.blocks_of(entry):
                    assert fetcher.fetch(sample, 0).error is not None
                with pytest.raises(OSError, match=os.strerror(errno.EOVERFLOW) + "|another number of bytes"):
                    fetcher.open_unchanged(entry)
            assert not pages.held
            entry = manifest.find(names[0].encode())
            parts = b"".join(bytes(fetcher.fetch(sample, 0).data or b"") for sample in samples.blocks_of(entry))
            assert parts == content(names[0], 5000)
            fetcher.open_unchanged(entry).close()
        os.close(fd)
