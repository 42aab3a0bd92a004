"""Turns the environment of a foreign task into what its agent and grader work on: a workspace on the host's root, or
the root of an image. The user says which; it is never guessed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType

from ringfence.container import images
from ringfence.container.engine import BUILD_S, Engine, Image, find_engine
from ringfence.errors import UsageError
from ringfence.model import state_folder
from ringfence.model.files import read_file
from ringfence.model.record import record
from ringfence.proctor.foreign import dockerfile as reading
from ringfence.proctor.foreign import laying, rootfs
from ringfence.proctor.foreign.dockerfile import Dockerfile
from ringfence.proctor.foreign.host_facts import HostFacts, ThisHost
from ringfence.proctor.task import Root
from ringfence.proctor.task_policy import TaskPolicy

BUILDS = "builds"
_IGNORED = ".dockerignore"
_KEPT_LOGS = 20
_NO_RIGHTS = (("network", "none"), ("security", "sandbox"))
_ASKED_BELOW = re.compile(r"^\s*RUN\s+(?:--\S+\s+)*--(?:network|security)\b", re.IGNORECASE | re.MULTILINE)
"""In a trigger for later builds, or in a heredoc, which old engines read as instructions."""
_OFFICIAL = re.compile(r"(?:docker\.io/)?docker/dockerfile(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?")
"""A newer Dockerfile frontend from Docker's own registry: the engine's own takes its place."""
_NOTHING: Mapping[str, str] = MappingProxyType({})


@record
class Described:
    """What a task says of its environment. Paths are of the host."""

    where: str
    """The file that says it, for errors."""
    name: str
    """The task's."""
    context: str
    dockerfile: str = ""
    """Absent: there is an image."""
    image: str = ""
    """A name that the engine may know."""
    build_s: float = BUILD_S
    network: bool = False
    """Whether the steps of a build have a network, where the user does not say so."""
    build_network: str = ""
    """What the user says of it: one of the engine's ``NETWORKS``."""
    workdir: str = ""
    """Over the image's."""
    user: str = ""
    """Over the image's."""
    own: tuple[str, ...] = ()
    """Names in the context that no COPY may show the agent."""


@record
class Prepared:
    """What agent and grader have."""

    mount_at: str = TaskPolicy().mount_at
    """Where they have the workspace; unused with a root, which says where they begin."""
    workspace: str = ""
    root: Root | None = None
    environment: Mapping[str, str] = _NOTHING
    notes: tuple[str, ...] = ()


def prepare(said: Described, root: str, *, engine: Engine | None = None, host: HostFacts | None = None) -> Prepared:
    """``root``: host or image, as the user said it. UsageError names what the host lacks; UnavailableError says how to
    get an engine."""
    rootfs.refuse_neither(said.where, root)
    text = _text(said.dockerfile) if said.dockerfile else ""
    found = reading.read(text, said.dockerfile) if said.dockerfile else None
    if found is not None:
        reading.stages(found)
        _refuse_other_reader(found)
    return _on_host(said, found, host or ThisHost()) if root == "host" else _on_image(said, found, text, engine)


def _text(path: str) -> str:
    try:
        return read_file(path, reading.MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error


def _refuse_other_reader(found: Dockerfile) -> None:
    """Anybody's image would be pulled and would read the file in its own way: our checks of it would mean nothing."""
    if found.syntax and not _OFFICIAL.fullmatch(found.syntax):
        raise UsageError(f"{found.path}:{found.syntax_line}: syntax: {found.syntax[:80]!r} would read it instead of "
                         "the engine", hint="remove the line")  # fmt: skip


def _on_host(said: Described, found: Dockerfile | None, host: HostFacts) -> Prepared:
    if found is None:
        raise UsageError(f"{said.where}: there is an image and no Dockerfile, so nobody knows what is in it",
                         hint="--image gets it from an engine")  # fmt: skip
    if said.user not in ("", "root", "0"):
        raise UsageError(f"{said.where}: there is no user {said.user!r} on the host's root for a task",
                         hint="--image runs on the root of the image")  # fmt: skip
    laid = rootfs.check(found, host, workdir=said.workdir)
    workspace = laying.workspace_of(found, laid, said.context, said.own)
    return Prepared(mount_at=laid.workdir, workspace=workspace, environment=laid.environment, notes=laid.notes)


def _on_image(said: Described, found: Dockerfile | None, text: str, engine: Engine | None) -> Prepared:
    if found is not None:
        _refuse_own_files(said, found)
        _refuse_more_rights(found)
        _refuse_triggers(found)
    engine = engine or find_engine()
    image, notes = _image(said, found, text, engine)
    stored = images.root_of(engine, image)
    workdir = said.workdir or image.workdir
    root = Root(folder=stored.folder, environment=image.environment, workdir=workdir, user=said.user or image.user,
                image_ref=image.ref, image_digest=image.id)  # fmt: skip
    return Prepared(root=root, notes=(*notes, *_left_out(image, stored.left_out)))


def _image(said: Described, found: Dockerfile | None, text: str, engine: Engine) -> tuple[Image, tuple[str, ...]]:
    """The one that is named, where the engine has it; else the one that is built."""
    if said.image and engine.has_image(said.image):
        return engine.image(said.image), ()
    if found is None:
        return engine.image(said.image), ()  # the error says how to get it
    _refuse_triggers_of_bases(found, engine)
    notes = [f"{said.image} is not in the engine; {said.dockerfile} was built"] if said.image else []
    network = said.build_network or ("default" if said.network else "none")
    if not said.build_network and said.network and not engine.has_network():
        network = "none"
        notes.append("the engine has no bridge, so the image was built without a network; --build-network host gives "
                     "the steps this host's")  # fmt: skip
    if found.syntax:
        text = reading.without_line(text, found.syntax_line)
        notes.append(f"{said.dockerfile}: syntax: the engine's own reader replaces {found.syntax}")
    with _as_read(text, said.dockerfile) as file:
        built = engine.build(said.context, file, network=network, deadline_s=said.build_s, log=_new_log(said.name),
                             original=said.dockerfile)  # fmt: skip
    return built, tuple(notes)


@contextmanager
def _as_read(text: str, path: str) -> Iterator[str]:
    """A file with the text that was checked: the task's own may have changed by now. Its ignore file goes with it."""
    with tempfile.TemporaryDirectory(prefix="dockerfile-", dir=state_folder.private_place()) as place:
        file = os.path.join(place, "Dockerfile")
        for name, data in ((file, text.encode()), (f"{file}{_IGNORED}", _data(f"{path}{_IGNORED}"))):
            if data is not None:
                with open(name, "xb") as made:
                    made.write(data)
        yield file


def _data(path: str) -> bytes | None:
    return read_file(path, reading.MAX_BYTES) if os.path.isfile(path) else None


def _new_log(name: str) -> str:
    """A file for what a build says; those of the last ones are kept."""
    top = state_folder.made(BUILDS)
    with os.scandir(top) as listing:
        kept = sorted((_age(each), each.path) for each in listing)
    for _, path in kept[:-_KEPT_LOGS]:
        with suppress(FileNotFoundError):  # another run removes the same ones
            os.unlink(path)
    plain = "".join(sign if sign.isalnum() else "-" for sign in name if sign.isascii())
    return os.path.join(top, f"{plain[:50]}-{os.urandom(6).hex()}.log")


def _age(log: os.DirEntry[str]) -> float:
    with suppress(FileNotFoundError):
        return log.stat().st_mtime
    return 0.0


def _left_out(image: Image, names: Sequence[str]) -> tuple[str, ...]:
    """What of an image is not there."""
    found = []
    if image.entrypoint:
        found.append(f"the image's entry point, {' '.join(image.entrypoint)[:80]}, is not run")
    if image.volumes:
        found.append(f"the image's volumes, {', '.join(image.volumes)[:80]}, are plain directories")
    if names:
        found.append(f"devices and FIFOs of the image are left out: {', '.join(names[:3])}")
    return tuple(found)


def _refuse_more_rights(found: Dockerfile) -> None:
    """A step gets only what the whole build is given: some engines let a step ask for a network or more rights."""
    for each in found.named("RUN", "ONBUILD"):
        asked = [name for name, value in each.flags if name != "mount" and (name, value) not in _NO_RIGHTS]
        texts = (each.text if each.name == "ONBUILD" else "", *(text.text for text in each.heredocs))
        if asked or each.text.startswith("--") or any(_ASKED_BELOW.search(text) for text in texts):
            what = f"--{asked[0]}" if asked else f"{each.text[:80]!r}"
            problem = found.problem(each, f"{what} asks for more than the build is given")
            problem.hint = "--build-network says which network all steps have"
            raise problem


def _refuse_triggers(found: Dockerfile) -> None:
    """Triggers run when a later stage or image begins from this one, and nobody has checked them."""
    for each in found.named("ONBUILD"):
        raise found.problem(each, "steps of later builds are not run")


def _refuse_triggers_of_bases(found: Dockerfile, engine: Engine) -> None:
    """Only for images that the engine has; nobody can look into one that is pulled during the build."""
    own = {name for _, name in reading.stages(found)}
    for base, _ in reading.stages(found):
        if base not in own and base != "scratch" and engine.has_image(base) and engine.image(base).triggers:
            raise UsageError(f"{found.path}: FROM {base}: it has ONBUILD steps, which would run unchecked",
                             hint="build an image from it yourself, and name that image")  # fmt: skip


def _refuse_own_files(said: Described, found: Dockerfile) -> None:
    """Where the context is the task's directory, a COPY of all of it would put the solution into the image."""
    for each in found.named("COPY", "ADD") if said.own else ():
        words = each.words() or tuple(each.text.split())
        if any(flag == "from" for flag, _ in each.flags):
            continue
        for source in (os.path.normpath(word.lstrip("/") or ".") for word in words[:-1]):
            if source in (".", "*") or source.split("/")[0] in said.own:
                raise found.problem(each, f"{source!r} has the task's own files in it: the agent would see them")
