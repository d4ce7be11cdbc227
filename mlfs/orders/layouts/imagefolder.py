"""The layout "imagefolder": dataset indices as torchvision.datasets.ImageFolder and DatasetFolder give them.

In: a tree, a directory in it, file name endings. Out: the entry of each dataset index. Called by `mlfs.orders.layouts`.
Source: torchvision/datasets/folder.py (find_classes, make_dataset): sorted class directories, each one walked with
followlinks=True. Hidden and linked directories count; files beside the class directories do not.
"""

from __future__ import annotations

from mlfs.orders.layouts.layout import SampleIds, Tree
from mlfs.orders.layouts.links import Links
from mlfs.orders.layouts.names import Endings, decode
from mlfs.orders.layouts.walk import Walker

ENDINGS = ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp")

LOOKED_FOR = "files with the endings {endings} in class directories"


def find_samples(tree: Tree, root: int, links: Links, extensions: tuple[str, ...] | None) -> list[SampleIds]:
    """Return the samples of the data set whose root is the directory `root`, in pieces.

    Raises:
        JobError: links to directories form a loop, or one leaves the tree and there is no hook.
    """
    walker = Walker(tree, links, Endings(extensions or ENDINGS), follow_links=True)
    classes = sorted((decode(tree.name(entry)), entry) for entry in tree.children(root))
    pieces: list[SampleIds] = []
    for _, entry in classes:
        seen = links.look(entry)
        if seen.is_directory:
            pieces += walker.walk(seen)
    return pieces
