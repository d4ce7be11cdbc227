"""Trees for the tests of the manifest: random ones on disk, and what os.walk and os.lstat say of them (the model)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

# Any bytes that a name may have. Short ones, so that names often share a beginning.
names = (
    st.one_of(
        st.binary(min_size=1, max_size=12),
        st.text("ab", min_size=1, max_size=3).map(str.encode),
        st.sampled_from([b"\xff\xfe", b"\n", b" ", b"-", b"...", b"x" * 255, "\u00e9".encode(), b".mlfs"]),
    )
    .map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"0"))
    .filter(lambda name: name not in (b".", b".."))
)

# bytes: a file's content. ("link", target), ("fifo",), or a dict of further names.
leaves = st.one_of(
    st.binary(max_size=20),
    st.tuples(st.just("link"), names),
    st.just(("fifo",)),
)
trees = st.recursive(
    st.dictionaries(names, leaves, max_size=5),
    lambda deeper: st.dictionaries(names, st.one_of(leaves, deeper), max_size=5),
    max_leaves=12,
)


def build(root: bytes, tree: dict) -> None:
    """Make the tree in the existing directory `root`."""
    for name, node in tree.items():
        path = os.path.join(root, name)
        if isinstance(node, dict):
            os.mkdir(path)
            build(path, node)
        elif isinstance(node, bytes):
            with open(path, "wb") as file:
                file.write(node)
        elif node[0] == "link":
            os.symlink(node[1], path)
        else:
            os.mkfifo(path)


@contextmanager
def on_disk(tree: dict) -> Iterator[tuple[bytes, int]]:
    """The tree in a temporary directory, with a descriptor of it."""
    root = tempfile.mkdtemp().encode()
    build(root, tree)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield root, fd
    finally:
        os.close(fd)
        shutil.rmtree(root)


def model(root: bytes) -> dict[bytes, os.stat_result]:
    """Every path below `root`, relative, with its lstat; b"" is the root."""
    found = {b"": os.lstat(root)}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, root)] = os.lstat(path)
    return found


def make_deep(root: str, depth: int, name: str = "d" * 200) -> int:
    """A chain of `depth` directories, longer than any path may be; returns a descriptor of the deepest."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=at)
        deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = deeper
    return at
