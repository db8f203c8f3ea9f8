"""Users who could exchange a folder, as the modes of all folders above it say.

A file that is read by its path is whose path it is: a user who may rename any folder above puts
another in its place, between a check and a use. ssh asks the same of the files that it believes.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

_MOST_LINKS = 40  # Linux's
_UNMAPPED = 65534
"""Owner of what belongs to a user whom this process's user namespace does not have."""


def exposure(path: Path) -> str:
    """Return why another user could exchange an existing folder; "" where none could.

    path: absolute. Each folder above it, and each link on the way, belongs to root or to this user,
    and nobody else may write to it; or it has the sticky bit, by which nobody may rename what is
    another's. Where that holds for all, no other user can make it fail later.
    """
    if not hasattr(os, "geteuid"):  # Windows: the profile's access list guards it
        return ""
    ahead = [*reversed(path.parts[1:])]
    folder, links = path.anchor, 0
    if reason := _reason(folder, os.lstat(folder)):
        return reason
    while ahead:
        name = ahead.pop()
        if name == "..":
            folder = os.path.dirname(folder)
            continue
        place = os.path.join(folder, name)
        status = os.lstat(place)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                return f"{place!r} is a link that leads in a circle"
            if not _is_trusted(status.st_uid):
                return f"{place!r} is a link of user {status.st_uid}, who could lead it elsewhere"
            target = Path(os.readlink(place))
            ahead += [part for part in reversed(target.parts) if part != target.anchor]
            folder = target.anchor or folder
            continue
        if reason := _reason(place, status):
            return reason
        folder = place
    return ""


def _reason(folder: str, status: os.stat_result) -> str:
    """Return why others may exchange what lies in a folder, or the folder's own content."""
    if not _is_trusted(status.st_uid):
        return f"{folder!r} belongs to user {status.st_uid}, who could exchange what lies in it"
    if status.st_mode & stat.S_ISVTX:
        return ""
    shown = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_mode & stat.S_IWOTH:
        return (
            f"{folder!r} can be written by every user ({shown}), who could exchange what lies in "
            f"it; take that away: chmod o-w {folder}, or add the sticky bit: chmod +t {folder}"
        )
    if status.st_mode & stat.S_IWGRP and not _is_own_group(folder, status.st_gid):
        return (
            f"{folder!r} can be written by group {status.st_gid} ({shown}), which could exchange "
            f"what lies in it; take that away: chmod g-w {folder}"
        )
    return ""


def _is_trusted(user: int) -> bool:
    """Return whether a user may do anything to this process anyway."""
    return user in (0, os.geteuid()) or (user == _UNMAPPED and _is_in_namespace())


@cache
def _is_in_namespace() -> bool:
    """Return whether this process is in a user namespace that lacks users of the machine.

    There root's own folders, "/" among them, seem to belong to nobody.
    """
    try:
        first, *others = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # not Linux
        return False
    return bool(others) or [int(part) for part in first.split()] != [0, 0, 2**32 - 1]


def _is_own_group(folder: str, group: int) -> bool:
    """Return whether a group that may write has no other member: many systems give each user one.

    Where a folder has an access list, the mode's group stands for all of that list.
    """
    try:
        import grp
        import pwd
    except ImportError:
        return False
    has_list = getattr(os, "listxattr", None)
    try:
        if has_list is not None and "system.posix_acl_access" in has_list(folder):
            return False
    except OSError:  # a file system without them
        pass
    try:
        own = pwd.getpwuid(os.geteuid())
        found = grp.getgrgid(group)
    except KeyError:
        return False
    return (
        found.gr_gid == own.pw_gid
        and found.gr_name == own.pw_name
        and not ({*found.gr_mem} - {own.pw_name})
    )
