"""The layout "keras": the files that keras.utils.image_dataset_from_directory finds, before it shuffles them.

In: a tree, a directory in it, file name endings. Out: the entry of each dataset index. Called by `mlfs.orders.layouts`.
Source: keras/src/utils/dataset_utils.py (index_directory, iter_valid_files; Keras 3.15), with labels="inferred" and
follow_links=False: class directories sorted, hidden ones skipped, linked ones taken; below them links to directories
are not followed. Endings: ALLOWLIST_FORMATS in keras/src/utils/image_dataset_utils.py.
"""

from __future__ import annotations

from mlfs.orders.layouts.layout import SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import Endings, decode
from mlfs.orders.layouts.walk import Walker

ENDINGS = ("bmp", "gif", "jpeg", "jpg", "png")

LOOKED_FOR = "files with the endings {endings} in class directories that are not hidden"


def find_samples(tree: Tree, root: int, links: Links, extensions: tuple[str, ...] | None) -> list[SampleIds]:
    """Return the samples of the data set whose root is the directory `root`, in pieces.

    Raises:
        JobError: a link leaves the tree and there is no hook.
    """
    walker = Walker(tree, links, Endings(extensions or ENDINGS), follow_links=False)
    classes = sorted((decode(tree.name(entry)), entry) for entry in tree.children(root))
    pieces: list[SampleIds] = []
    for name, entry in classes:
        seen = links.look(entry)
        if seen.is_directory and not name.startswith("."):
            pieces += walker.walk(seen)
    return pieces
