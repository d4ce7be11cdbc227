"""mlfs: a clairvoyant read-only file system in front of training data.

This package is the library: what to read, when and from where. It knows no FUSE; the daemon of a mount is `mountd`.
"""

__version__ = "0.1.0"
