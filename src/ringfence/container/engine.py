"""``Engine``: docker or podman, by its command. It builds images, describes them, and exports their roots.

There is no fallback to another engine: the requested one is there, or the error says how to get it
(ADR 0086).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO

from ringfence.container import command
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model import state_folder
from ringfence.model.record import record
from ringfence.model.system_text import is_system_text

VARIABLE = "RINGFENCE_ENGINE"
"""Names the engine to use: docker, podman, or the path of either."""
LABEL = "ringfence.export"
BUILD_S, ANSWER_S = 600.0, 60.0
NETWORKS = ("none", "default", "host")
_BUILDER, _OWN_BUILDER = "DOCKER_BUILDKIT", 23
_NAMES = ("docker", "podman")
_INSTALL = {
    "docker": "install Docker, such as Debian's docker.io, and start its daemon; or set DOCKER_HOST to one that runs",
    "podman": "or install podman, which needs no daemon",
}
_WANTS_BUILDKIT = ("requires BuildKit", "buildx component is missing")
"""What docker says without its builder: since version 23 BuildKit is a package of its own."""
_NO_COMMAND = "/ringfence-nothing"
"""A container whose root is exported needs a command, which never runs."""
_HEX = frozenset("0123456789abcdef")
_ID_CHARS = 64


@record
class Image:
    """What an engine says of an image, checked."""

    id: str
    """``sha256:`` and 64 digits: the digest of its configuration, and so of all that is in it."""
    ref: str
    """As it was asked for."""
    environment: Mapping[str, str] = MappingProxyType({})
    workdir: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    """ONBUILD: steps that every build from it runs first."""
    size_bytes: int = 0


def find_engine() -> Engine:
    """The engine that ``RINGFENCE_ENGINE`` names, else docker, else podman, whichever answers first."""
    named = os.environ.get(VARIABLE, "")
    problems = []
    for name in (named,) if named else _NAMES:
        path = shutil.which(name)
        if path is None:
            problems.append(f"{name} is not installed")
            continue
        found = Engine(path)
        problem = found.problem()
        if not problem:
            return found
        problems.append(f"{name}: {problem}")
    raise UnavailableError(f"no container engine can be used here: {'; '.join(problems)}", missing=("engine",),
                           fixes=tuple(_INSTALL.values()) if not named else ())  # fmt: skip


class Engine:
    """Asks one engine by its program. Each call is a command of its own; nothing is kept between them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_podman = os.path.basename(path).startswith("podman")

    def problem(self) -> str:
        """Why it can't be used; empty: it answers."""
        words = ("info", "--format", "{{.Version.Version}}" if self.is_podman else "{{.ServerVersion}}")
        try:
            said = self._run(words, step="ask the container engine")
        except SetupError as error:
            return str(error)
        return said.last_line if said.code or not said.stdout.strip() else ""

    def build(
        self, folder: str, dockerfile: str, *, args: Mapping[str, str] = MappingProxyType({}), network: str = "none",
        deadline_s: float = BUILD_S, log: str, original: str = "",
    ) -> Image:  # fmt: skip
        """Build an image of a directory. What its steps say is in the new file ``log``. ``network``: what the steps
        have, one of ``NETWORKS``. ``original``: the file that ``dockerfile`` is a copy of, for errors; absent: it is
        not a copy. If it fails, takes too long or is interrupted, what was begun is dropped."""
        with tempfile.TemporaryDirectory(prefix="build-", dir=state_folder.private_place()) as place:
            told = os.path.join(place, "id")
            words = ["build", "--force-rm", "--file", dockerfile, "--iidfile", told]
            words += [] if network == "default" else ["--network", network]
            words += ["--http-proxy=false"] if self.is_podman and network == "none" else []  # it may hold a password
            for name, value in args.items():
                words += ["--build-arg", f"{name}={value}"]
            said = command.run_logged((self.path, *words, folder), log, deadline_s=deadline_s, step="build the image",
                                      **self._builder())  # fmt: skip
            if said.code:
                shown = original or dockerfile
                raise SetupError("build the image", f"{shown}: {said.last_line.replace(dockerfile, shown)}",
                                 hint=f"{self._fix(said.last_line)}the full output is in {log}")  # fmt: skip
            with open(told, encoding="ascii") as file:
                return self.image(file.read().strip())

    def _builder(self) -> dict[str, str]:
        """Docker before 23 includes BuildKit, which supports every Dockerfile, but uses it only when told to."""
        if self.is_podman or _BUILDER in os.environ:
            return {}
        said = self._run(("version", "--format", "{{.Client.Version}}"), step="ask the container engine")
        first = said.stdout.decode("ascii", "replace").strip().partition(".")[0]
        return {_BUILDER: "1"} if first.isdigit() and int(first) < _OWN_BUILDER else {}

    @staticmethod
    def _fix(line: str) -> str:
        if not any(words in line for words in _WANTS_BUILDKIT):
            return ""
        return (f"this docker has no BuildKit: install docker-buildx (of Docker's own packages: docker-buildx-plugin), "
                f"or set {VARIABLE}=podman; ")  # fmt: skip

    def has_network(self) -> bool:
        """Whether containers can have one: a daemon may run without a bridge."""
        said = self._run(("network", "ls", "--format", "{{.Name}}"), step="list networks")
        return bool({"bridge", "podman"} & set(said.stdout.decode("utf-8", "replace").split()))

    def image(self, ref: str) -> Image:
        """An image that the engine has; UsageError where it has none of that name. Nothing is pulled."""
        _check_ref(ref)
        said = self._run(("image", "inspect", ref), step="look at the image")
        if said.code:
            raise UsageError(f"the container engine has no image {ref!r}: {said.last_line}",
                             hint=f"{os.path.basename(self.path)} pull {ref}, or build it")  # fmt: skip
        return read_image(said.stdout, ref)

    def has_image(self, ref: str) -> bool:
        _check_ref(ref)
        return self._run(("image", "inspect", ref), step="look at the image").code == 0

    @contextmanager
    def exported(self, image: Image, owner: str) -> Iterator[IO[bytes]]:
        """The image's root as a tar archive. ``owner``: a word for the caller; what a killed export of the same owner
        left in the engine is removed first."""
        label = f"{LABEL}={owner}"
        self._forget(label)
        words = ("create", "--label", label, "--network", "none", "--entrypoint", _NO_COMMAND, image.id)
        said = self._run(words, step="export the image")
        if said.code:
            raise SetupError("export the image", said.last_line)
        try:
            container = said.stdout.decode("ascii", "replace").split()[-1]
            with command.streamed((self.path, "export", container), step="export the image") as stream:
                yield stream
        finally:
            self._forget(label)

    def _forget(self, label: str) -> None:
        """Remove the containers of a label; none of them has ever run."""
        said = self._run(("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}"), step="list containers")
        found = said.stdout.decode("ascii", "replace").split()
        if found:
            self._run(("rm", "--force", "--volumes", *found), step="remove containers")

    def _run(self, words: Sequence[str], *, step: str) -> command.Said:
        return command.run((self.path, *words), deadline_s=ANSWER_S, step=step)


# ---- what an engine says of an image


def read_image(data: bytes, ref: str) -> Image:
    """Read the JSON of ``image inspect``; UsageError if no engine would say that. The author of the image wrote a part
    of it."""
    try:
        found = json.loads(data)
        (row,) = found
        config = row.get("Config") or {}
        return Image(
            id=_id(row["Id"]), ref=ref, environment=MappingProxyType(dict(_variables(config.get("Env") or ()))),
            workdir=_workdir(config.get("WorkingDir") or "/"), user=_user(config.get("User") or ""),
            entrypoint=tuple(map(str, config.get("Entrypoint") or ())),
            volumes=tuple(map(str, config.get("Volumes") or ())),
            triggers=tuple(map(str, config.get("OnBuild") or ())), size_bytes=int(row.get("Size") or 0),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"what the container engine says of {ref!r} can't be read: {error}") from error


def _id(text: object) -> str:
    digits = str(text).removeprefix("sha256:")
    if len(digits) != _ID_CHARS or not _HEX.issuperset(digits):
        raise ValueError(f"{str(text)[:80]!r} is not an image id")
    return f"sha256:{digits}"


def _variables(rows: Sequence[str]) -> Iterator[tuple[str, str]]:
    for row in rows:
        name, equal, value = row.partition("=")
        if not equal or not name or not is_system_text(row):
            raise ValueError(f"{row[:80]!r} is not a variable")
        yield name, value


def _workdir(text: str) -> str:
    plain = "/" + os.path.normpath(text).lstrip("/")
    if not text.startswith("/") or not is_system_text(text):
        raise ValueError(f"{text[:80]!r} is not a working directory")
    return plain


def _user(text: str) -> str:
    if not is_system_text(text) or (text and "" in text.split(":")):
        raise ValueError(f"{text[:80]!r} is not a user")
    return text


def _check_ref(ref: str) -> None:
    """The name becomes an argument of a command."""
    if not ref or ref.startswith("-") or not ref.isprintable() or " " in ref:
        raise UsageError(f"{ref!r} is not an image name")
