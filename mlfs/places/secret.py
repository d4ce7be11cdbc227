"""The secret of a user: 32 random bytes on which the checksums of his copies on disk depend.

In: nothing but the user's cache directory, where the secret lies in a file of mode 0600. Out: a `Secret`. It is made by
the first mount, and shared by all mounts of the user, also on other nodes when the home directory is shared. Nobody
without it can write a copy that mlfs believes. Read by mlfs.places.on_disk, mlfs.places.cache_admin and
mlfs.peers.shelf; mlfs.places.record makes the checksums.
"""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

from blake3 import blake3

from mlfs.errors import CacheError
from mlfs.ours import NotOursError, open_ours, private_directory, user_cache_directory

FILE_NAME = "copies.key"
_BYTES = 32  # the key length of BLAKE3
_ID_BYTES = 8

log = logging.getLogger("mlfs.places.secret")


@dataclass(frozen=True)
class Secret:
    """The bytes, and what stands in each copy to tell by which secret it was written.

    Attributes:
        id: 8 bytes that follow from the secret and tell nothing of it.
    """

    value: bytes = field(repr=False)
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        id_ = blake3(self.value, derive_key_context="mlfs 2026 id of the secret of copies").digest(_ID_BYTES)
        object.__setattr__(self, "id", id_)


def of_this_user() -> Secret:
    """The secret of this user, made when there is none.

    A user who has no directory for it gets one that lasts as long as the process: copies are used by this mount only.

    Raises CacheError for a file that somebody else can have read or written.
    """
    path = os.path.join(user_cache_directory(), FILE_NAME)
    try:
        return _read_or_make()
    except NotOursError as error:
        raise CacheError(f"the key of copies, {error.filename}: {error.strerror}", error.way_out) from error
    except OSError as error:
        log.warning("%s: %s; copies on disk are used by this mount only, and not by the next", path, error.strerror)
        return Secret(secrets.token_bytes(_BYTES))


def _read_or_make() -> Secret:
    directory = private_directory(user_cache_directory())
    try:
        with suppress(FileNotFoundError):
            return _read(directory)
        # Mounts that start at once each write one of their own. The first to give it the name wins, for link does not
        # replace; then all of them read the same.
        temporary = f".{FILE_NAME}.{secrets.token_hex(8)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask
            os.write(fd, secrets.token_bytes(_BYTES))
            os.fsync(fd)
            with suppress(FileExistsError):
                os.link(temporary, FILE_NAME, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.close(fd)
            os.unlink(temporary, dir_fd=directory)
        return _read(directory)
    finally:
        os.close(directory)


def _read(directory: int) -> Secret:
    path = os.path.join(user_cache_directory(), FILE_NAME)
    fd = open_ours(FILE_NAME, dir_fd=directory)
    try:
        value, mode = os.read(fd, _BYTES + 1), os.fstat(fd).st_mode
    finally:
        os.close(fd)
    if len(value) != _BYTES:
        raise NotOursError(path, "it is damaged", f"remove it: rm {path}; copies on disk are then made anew")
    if mode & 0o077:
        raise NotOursError(path, "others can read it", f"remove it: rm {path}; copies on disk are then made anew")
    return Secret(value)
