"""What is read from a directory that will be a root: who its users are, and what names in it mean.

Anybody may have written what is in it. Every path is resolved inside it, as the job will see it; no link leads out.
"""

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Iterable, Iterator

from ringfence.errors import PolicyError
from ringfence.kernel.mount import mounts
from ringfence.model.policy import SandboxPolicy
from ringfence.model.ways.walk import real
from ringfence.sandbox.image_root import Guest

_FILE_BYTES = 1 << 20
_LARGEST_ID = 2**31 - 1
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG)


def folder_of(policy: SandboxPolicy) -> str:
    """The real path of the directory; PolicyError if there is none, or if it is the host's own root."""
    try:
        place = real(policy.root)
        found, hosts = os.stat(place), os.stat("/")
    except OSError as error:
        raise PolicyError("root", f"{policy.root}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise PolicyError("root", f"{policy.root} is not a directory")
    if place == "/" or os.path.samestat(found, hosts):
        raise PolicyError("root", f"{policy.root} is the host's own root; name the directory of another")
    return place


def open_root(folder: str) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def read(root: int, path: str, most: int = _FILE_BYTES) -> bytes:
    """The beginning of a file; nothing if there is none. Never a device or a FIFO, nor anything outside."""
    try:
        place = mounts.open_in_root(root, path)
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return b""
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return b""
        with open(f"/proc/self/fd/{place}", "rb") as file:
            return file.read(most)
    except PermissionError:
        return b""
    finally:
        os.close(place)


def names_of(folder: str, paths: Iterable[str]) -> list[str]:
    """Each path as the job will meet it: as written, with the links on the way resolved inside, and the target of a
    link at its end."""
    root = open_root(folder)
    try:
        found = [name for path in paths for name in (path, _real(root, folder, path), _end(root, folder, path))]
    finally:
        os.close(root)
    return list(dict.fromkeys(filter(None, found)))


def _end(root: int, folder: str, path: str) -> str:
    """Where all links lead; empty: nowhere, or to the root itself, which can't be meant."""
    try:
        place = mounts.open_in_root(root, path)
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return ""
    try:
        real = os.readlink(f"/proc/self/fd/{place}")
    finally:
        os.close(place)
    return real[len(folder) :] if real.startswith(f"{folder}/") else ""


def _real(root: int, folder: str, path: str) -> str:
    """Resolves the part of it that exists."""
    above, rest = os.path.dirname(path), os.path.basename(path)
    while above != "/":
        try:
            place = mounts.open_in_root(root, above)
        except OSError as error:
            if error.errno not in _NOWHERE:
                raise
            above, rest = os.path.dirname(above), f"{os.path.basename(above)}/{rest}"
            continue
        try:
            real = os.readlink(f"/proc/self/fd/{place}")
        finally:
            os.close(place)
        return f"{real[len(folder) :]}/{rest}" if real.startswith(f"{folder}/") else f"/{rest}"
    return f"/{rest}"


# ---- who the job is


def guest_of(policy: SandboxPolicy) -> Guest:
    """PolicyError if the root has no user of that name."""
    root = open_root(folder_of(policy))
    try:
        users = list(_rows(read(root, "/etc/passwd"), 7))
        groups = list(_rows(read(root, "/etc/group"), 4)) if ":" in policy.root_user else []
    finally:
        os.close(root)
    user, _, group = policy.root_user.partition(":")
    found = _found_user(user or "0", users)
    return found if not group else _with_group(found, group, groups)


def _rows(data: bytes, columns: int) -> Iterator[list[str]]:
    """The lines with a name and an id; a file of an image may contain anything."""
    for line in data.decode("utf-8", "replace").splitlines():
        row = line.split(":")
        if len(row) >= columns and row[0] and all(map(_is_id, row[2:3])):
            yield row


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _LARGEST_ID


def _found_user(user: str, users: list[list[str]]) -> Guest:
    by_number = _is_id(user)
    for name, _, uid, gid, _, home, *_ in users:
        if (int(uid) == int(user) if by_number else name == user) and _is_id(gid):
            return Guest(uid=int(uid), gid=int(gid), name=name, home=_home(home))
    if not by_number:
        raise PolicyError("root_user", f"the root's /etc/passwd has no {user!r}; name one that it has, or a uid")
    return Guest() if int(user) == 0 else Guest(uid=int(user), gid=int(user), name=user, home="/")


def _home(path: str) -> str:
    plain = path.startswith("/") and os.path.normpath(path) == path and "\0" not in path
    return path if plain and not path.startswith("//") else "/"


def _with_group(guest: Guest, group: str, groups: list[list[str]]) -> Guest:
    if _is_id(group):
        return Guest(uid=guest.uid, gid=int(group), name=guest.name, home=guest.home)
    for name, _, gid, *_ in groups:
        if name == group:
            return Guest(uid=guest.uid, gid=int(gid), name=guest.name, home=guest.home)
    raise PolicyError("root_user", f"the root's /etc/group has no {group!r}; name one that it has, or a gid")
