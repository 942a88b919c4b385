"""Folders whose files nobody but this user and root can replace.

Whoever may write to a folder, or rename one above it, decides what is found in it. Every folder and
every symbolic link on the way is looked at, as it is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40


def writable_by_others(folder: Path) -> str:
    """Who else could change what is found in `folder` and how to fix that; "" if nobody.

    What of the path does not exist yet is made by `make_private`. On systems without users' ids
    nothing is found.
    """
    if not hasattr(os, "geteuid"):
        return ""
    steps = list(_steps(folder))
    for place, (path, status) in enumerate(steps):
        problem = _problem(path, status, inner=place < len(steps) - 1)
        if problem:
            return problem
    return ""


def is_own(status: os.stat_result) -> bool:
    """Whether a file belongs to this user or root, and only they can write to it."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (0, os.geteuid()) and not _others_write(status)


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, for this user alone. Raises OSError."""
    if folder.is_dir():
        return
    make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _problem(path: str, status: os.stat_result, *, inner: bool) -> str:
    """What is wrong with a folder or link; `inner` ones lead to another one."""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user"
    if not stat.S_ISDIR(status.st_mode) or not _others_write(status):
        return ""
    if inner and status.st_mode & stat.S_ISVTX:  # who owns an entry of it is looked at next
        return ""
    return f"others may write to {path} (chmod go-w {path})"


def _others_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


def _is_own_group(number: int) -> bool:
    """Whether a group is the user's own, as many systems make one for each user."""
    if number == 0:
        return True
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _steps(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder and symbolic link on the way to `folder`, as far as there are any."""
    rest = list(Path(os.path.abspath(folder)).parts)
    current = rest.pop(0)
    yield current, os.lstat(current)
    links = 0
    while rest:
        part = rest.pop(0)
        following = os.path.normpath(os.path.join(current, part))
        try:
            status = os.lstat(following)
            target = os.readlink(following) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return
        yield following, status
        if target is None:
            current = following
            continue
        links += 1
        if links > _MOST_LINKS:
            return
        rest = [*Path(target).parts, *rest]
        if os.path.isabs(target):
            current = rest.pop(0)
