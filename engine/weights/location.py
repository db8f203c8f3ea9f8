"""The compile cache's location, and the check that its content can be trusted."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

from engine.host.owners import exposure
from engine.host.paths import absolute

LAYOUT = "v1"
"""Name of the folder in the cache's that holds all of it: another layout gets another name."""

_APPLICATION = "inference-engine"


class CacheUnusable(Exception):
    """The cache cannot be used; the text says why, and what to do."""


def default_folder() -> Path:
    """Return the cache's folder: ENGINE_CACHE_DIR, else the platform's convention.

    Linux: XDG's base directory specification; macOS: ~/Library/Caches; Windows: %LOCALAPPDATA%.
    Raises CacheUnusable where the user has no home.
    """
    if given := os.environ.get("ENGINE_CACHE_DIR"):
        return expanded(Path(given))
    if sys.platform == "darwin":
        base = Path("~/Library/Caches")
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return expanded(base) / _APPLICATION


def expanded(folder: Path) -> Path:
    """Return a folder with its ~ replaced. Raises CacheUnusable where the user has no home."""
    try:
        return folder.expanduser()
    except RuntimeError as error:  # a container's user that is in no list of users
        raise CacheUnusable(
            f"{str(folder)!r}: this user has no home folder; set ENGINE_CACHE_DIR"
        ) from error


def private_folder(folder: Path) -> Path:
    """Return the cache's own folder in `folder`, made where it is not there yet, mode 0700.

    On a read-only disk it may not be there. The path is absolute.
    Raises CacheUnusable where it cannot be made, or where another user could write to it, or put
    another in its place: what lies there is executed as a model's graph, its weights are believed.
    """
    own = absolute(folder) / LAYOUT
    try:
        is_made = _is_made(own)
        # Where it is missing still, whoever could make it could put anything there.
        if why := exposure(next(above for above in own.parents if os.path.lexists(above))):
            raise CacheUnusable(
                f"{str(own)!r} is not safe from other users: {why}; or set ENGINE_CACHE_DIR to a "
                "folder below ones that only you and root can write to"
            )
        if not is_made:
            return own
        status = own.lstat()
    except OSError as error:
        raise CacheUnusable(f"{str(own)!r} cannot be made: {error.strerror or error}") from error
    if why := _foreign(status):
        raise CacheUnusable(f"{str(own)!r} {why}; set ENGINE_CACHE_DIR to a folder of your own")
    return own


def _is_made(folder: Path) -> bool:
    """Make a folder, and those above it that are missing, for the user alone.

    Returns False where the disk is read-only. Raises OSError.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return True
    except FileNotFoundError:
        if os.path.lexists(folder.parent):  # a link to nowhere
            raise
        return _is_made(folder.parent) and _is_made(folder)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or os.path.lexists(folder):
            raise
        if not folder.parent.is_dir():
            raise
        return False
    return True


def _foreign(status: os.stat_result) -> str:
    """Return why others may have written to a folder; "" for one that is its user's alone."""
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if not hasattr(os, "geteuid"):  # Windows: the profile's access list guards it
        return ""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, and this process is user {os.geteuid()}"
    if status.st_mode & 0o077:
        return f"is open to others (mode {stat.S_IMODE(status.st_mode):04o}, not 0700)"
    return ""
