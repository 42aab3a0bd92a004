"""The paths of a policy: what may be wrong with them."""

from __future__ import annotations

import os
from _collections_abc import Iterator, Mapping

from ringfence.model.limits import IsolationLevel
from ringfence.model.system_text import is_system_text, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.policy import SandboxPolicy
    from ringfence.model.policy_keys import Problem

FIELDS = ("readable_paths", "writable_paths", "hidden_paths")
_NEVER_THE_WHOLE = ("hidden_paths", "shown_at", "root")
MOST_PATHS = 10_000
"""Of a policy in all: each is looked for on the host, for every sandbox."""
MOST_PATH_BYTES, MOST_NAME_BYTES = 4096, 255
"""PATH_MAX and NAME_MAX: no call of the kernel takes more, so nothing that a policy means can have such a path."""
_LARGEST_ID, _ID_DIGITS = 2**31 - 1, 10


def text_of(value: object) -> object:
    """Return the text of a path object."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _too_many(policy: SandboxPolicy) -> Iterator[Problem]:
    counts = {name: _count(getattr(policy, name)) for name in (*FIELDS, "shown_at")}
    if sum(counts.values()) > MOST_PATHS:
        most = max(counts, key=counts.__getitem__)
        yield most, f"the policy has more than {MOST_PATHS:,} paths in all; name the directories that they are in"


def _count(paths: object) -> int:
    return len(paths) if isinstance(paths, tuple | Mapping) else 0


def check(policy: SandboxPolicy) -> Iterator[Problem]:
    too_many = [*_too_many(policy)]
    yield from too_many or _listed(policy)


def _listed(policy: SandboxPolicy) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for name in FIELDS:
        paths = getattr(policy, name)
        if not isinstance(paths, tuple):
            yield name, f"{quoted(paths)} is not a list of paths"
            continue
        for path in paths:
            yield from _path_problems(name, path)
            if not isinstance(path, str):
                continue
            if path in seen:
                yield name, f"{quoted(path)} is in {seen[path]} too"
            seen[path] = name


def check_places(policy: SandboxPolicy) -> Iterator[Problem]:
    name, places = "shown_at", policy.shown_at
    if not isinstance(places, Mapping):
        yield name, f"{quoted(places)} must be a mapping, such as {{/srv/answers: /oracle}}"
        return
    for path in (*places.keys(), *places.values()):
        yield from _path_problems(name, path)
    if places and policy.isolation is not IsolationLevel.STRICT:
        yield name, f"at isolation {policy.isolation} everything is at its own path; choose strict"


def check_root(policy: SandboxPolicy) -> Iterator[Problem]:
    root, user = policy.root, policy.root_user
    if root != "":
        yield from _path_problems("root", root)
        if policy.isolation is not IsolationLevel.STRICT:
            yield "root", f"at isolation {policy.isolation} a job has the host's own root; choose strict"
    if not isinstance(user, str) or not is_system_text(user):
        yield "root_user", f"{quoted(user)} is not user or user:group, as names or numbers"
    elif user and not root:
        yield "root_user", "a job can be another user only in a root of its own; name root"
    elif not _is_user(user):
        yield "root_user", f"{quoted(user)} is not user or user:group, as names or numbers"


def check_image(policy: SandboxPolicy) -> Iterator[Problem]:
    image = policy.image
    if not isinstance(image, str) or not is_system_text(image) or not _is_image(image):
        yield "image", f"{quoted(image)} is not an image name"
    elif image and policy.isolation is not IsolationLevel.CONTAINER:
        yield "image", f"at isolation {policy.isolation} a job has the host's own files; choose container"


def _is_image(image: str) -> bool:
    """Whether an engine could know an image by that name; absent is fine too."""
    return not image or (image[0].isalnum() and image.isascii() and image.isprintable() and " " not in image)


def _is_user(user: str) -> bool:
    """Whether it is written as one; absent is fine too."""
    parts = user.split(":") if user else []
    return len(parts) <= 2 and all(map(_is_name_or_id, parts))


def _is_name_or_id(text: str) -> bool:
    if not text[:1].isdecimal():
        return bool(text) and not set(text) & set("/ \t\n")
    return text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS and int(text) <= _LARGEST_ID


def _path_problems(name: str, path: object) -> Iterator[Problem]:
    if not isinstance(path, str):
        yield name, f"{quoted(path)} is not a path"
    elif not is_system_text(path):
        yield name, f"{quoted(path)} contains a NUL or an unpaired surrogate (not valid Unicode); remove it"
    elif _is_too_long(path):
        yield name, f"{quoted(path)} is too long: {_too_long(path)}; name a directory above it"
    elif not os.path.isabs(path):
        yield name, f"{quoted(path)} is not absolute"
    elif path != _plain_path(path):
        yield name, f"{quoted(path)} is not in its plain form, {quoted(_plain_path(path))}"
    elif name in _NEVER_THE_WHOLE and os.path.splitdrive(path)[1] in ("/", os.sep):
        yield name, f"{path} is the whole system; name the part that you mean"


def _is_too_long(path: str) -> bool:
    return len(path) * 4 > MOST_NAME_BYTES and bool(_too_long(path))


def _too_long(path: str) -> str:
    """Which of the two bounds it is beyond; empty: neither."""
    data = os.fsencode(path)
    if len(data) > MOST_PATH_BYTES:
        return f"{len(data):,} bytes, and a path has at most {MOST_PATH_BYTES:,}"
    longest = max(map(len, data.replace(os.fsencode(os.sep), b"/").split(b"/")))
    return f"a part of {longest:,} bytes, and a part has at most {MOST_NAME_BYTES}" if longest > MOST_NAME_BYTES else ""


def _plain_path(path: str) -> str:
    """POSIX lets two slashes at the start mean something else, so normpath keeps them; no system uses that."""
    plain = os.path.normpath(path)
    return plain[1:] if plain.startswith("//") else plain
