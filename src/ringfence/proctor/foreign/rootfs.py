"""``--rootfs host``: whether this host has all that a task's Dockerfile asks for, and what has to be laid.

Each instruction is checked. If its result is not there already and can't be laid into the workspace, it is refused by
file and line. Pure: the host is asked through ``HostFacts``, and ``laying`` touches the disk.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.paths import within
from ringfence.model.record import record
from ringfence.proctor.foreign import dockerfile as reading
from ringfence.proctor.foreign.dockerfile import Dockerfile, Instruction
from ringfence.proctor.foreign.host_facts import HostFacts, plain_name

ROOTS = ("host", "image")
NEITHER = "it names an image, and the task's root was not chosen"
_BOTH_WAYS = ("--image builds the task's image with docker or podman and runs on its root",
              "--rootfs host runs on this host's own root, where the host has all that the image would")  # fmt: skip
_NOT_HERE = "this can't be done on the host's root"
_INSTEAD = "--image builds the image with an engine instead"
_WORKDIR_OF_BASES = "/app"
"""Images of Terminal-Bench have it as their WORKDIR."""
_OF_TERMINAL_BENCH = re.compile(r"(?:ghcr\.io/)?laude-institute/t-bench/(ubuntu|python|debian)-([0-9-]+)(?::\S+)?")
_OF_DEBIAN = ("debian", "ubuntu", "buildpack-deps")
_HARMLESS = ("LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL", "CMD")
"""They change nothing in the files of an image, and no benchmark runs CMD."""
_CLEARED = re.compile(r"(/var/lib/apt/lists|/var/cache/apt|/tmp|/var/tmp|/root/\.cache)(/[\w.*-]*)*")
_APT_NOTHING = ("update", "clean", "autoclean", "autoremove")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]*)(?:\[[\w,.-]*\])?(?:==([^=;\s]+))?")
_NO_SHELL = frozenset("$`<>|(){}*?!")
_ARCHIVE = re.compile(r"\.(tar|tgz|tbz2|txz)(\.\w+)?$|\.t?(gz|xz)$")
_SYSTEM_MODE = re.compile(r"[0-7]{3,4}|[ugoa]*\+[rwx]+")


@record
class Copied:
    """What COPY or ADD lays into the workspace."""

    sources: tuple[str, ...]
    """Relative to the task's context; patterns as of a shell."""
    target: str
    """Absolute, as the agent sees it; with a slash at the end it is a directory."""
    mode: int | None
    where: Instruction


@record
class Made:
    """A directory that a RUN makes, or a mode that it sets."""

    path: str
    where: Instruction
    mode: str = ""
    """Absent: it is a directory, which is made."""


@record
class Laid:
    """What is left to do of a Dockerfile when the host has everything else."""

    workdir: str
    environment: Mapping[str, str]
    steps: tuple[Copied | Made, ...] = ()
    """In their order."""
    notes: tuple[str, ...] = ()


def refuse_neither(where: str, rootfs: str) -> None:
    """UsageError unless the user said which root."""
    if rootfs not in ROOTS:
        raise UsageError(f"{where}: {NEITHER}", hint="; ".join(_BOTH_WAYS))


def check(dockerfile: Dockerfile, host: HostFacts, *, workdir: str = "") -> Laid:
    """What to lay into the workspace; UsageError names the first thing that this host lacks, or can't do.

    ``workdir``: said by the task, over the Dockerfile's."""
    return _Check(dockerfile, host).laid(workdir)


class _Check:
    def __init__(self, dockerfile: Dockerfile, host: HostFacts) -> None:
        self._file, self._host = dockerfile, host
        self._workdir = ""
        self._environment: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._steps: list[Copied | Made] = []
        self._notes: list[str] = []

    def laid(self, said: str) -> Laid:
        for each in self._file.instructions:
            self._looked_at(each)
        workdir = said or self._workdir
        if workdir in ("", "/"):
            raise UsageError(f"{self._file.path}: no WORKDIR, so the whole root would be the workspace", hint=_INSTEAD)
        for step in self._steps:
            path = step.target if isinstance(step, Copied) else step.path
            if not within(path.rstrip("/") or "/", workdir):
                raise self._refused(step.where, f"{path} is outside the working directory {workdir}")
        return Laid(workdir=workdir, environment=MappingProxyType(self._environment), steps=tuple(self._steps),
                    notes=tuple(self._notes))  # fmt: skip

    def _refused(self, where: Instruction, what: str) -> UsageError:
        error = self._file.problem(where, what)
        error.hint = _INSTEAD
        return error

    def _looked_at(self, each: Instruction) -> None:
        looks = {"FROM": self._from, "ARG": self._arg, "ENV": self._env, "WORKDIR": self._into, "USER": self._user,
                 "COPY": self._copy, "ADD": self._copy, "RUN": self._run}  # fmt: skip
        if each.name in looks:
            looks[each.name](each)
        elif each.name not in _HARMLESS:
            raise self._refused(each, _NOT_HERE)

    def _known(self) -> dict[str, str]:
        return {**self._arguments, **self._environment}

    # ---- which system

    def _from(self, each: Instruction) -> None:
        found = reading.stages(self._file)
        if len(found) > 1 or each.flags:
            raise self._refused(each, "several stages, or another platform, need a container engine")
        image = found[0][0]
        base = _OF_TERMINAL_BENCH.fullmatch(image)
        if base:
            self._workdir = _WORKDIR_OF_BASES
            name, version = base[1], base[2].replace("-", ".")
        else:
            name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
            version = re.match(r"[0-9.]*", tag)[0]  # type: ignore[index]
        self._same_kind(each, name, version, image)

    def _same_kind(self, each: Instruction, name: str, version: str, image: str) -> None:
        family = self._host.family()
        if name not in (*_OF_DEBIAN, "python") or "alpine" in image:
            raise self._refused(each, f"{image} is not of a distribution that can be compared with this host's")
        if "debian" not in family:
            raise self._refused(each, f"{image} is based on Debian; this host is {', '.join(sorted(family)) or '?'}")
        wanted = ".".join(version.split(".")[:2])
        if name == "python" and wanted not in ("", "3") and wanted != self._host.python():
            raise self._refused(each, f"{image} has Python {wanted}, and this host {self._host.python() or 'none'}")
        if name != "python":
            self._notes.append(f"{self._file.path}: FROM {image}: the host's own release is used instead")

    def _user(self, each: Instruction) -> None:
        if each.text.split(":")[0] not in ("root", "0"):
            raise self._refused(each, f"there is no user {each.text!r} on the host's root for a task")

    # ---- variables and directories

    def _arg(self, each: Instruction) -> None:
        self._arguments |= reading.declared(self._file, each, self._known())

    def _env(self, each: Instruction) -> None:
        self._environment |= reading.assignments(self._file, each, self._known())

    def _place(self, text: str) -> str:
        """An absolute path; a slash at the end stays."""
        whole = os.path.join(self._workdir or "/", text)
        plain = "/" + os.path.normpath(whole).lstrip("/")
        return f"{plain}/" if text.endswith(("/", "/.")) or text == "." else plain

    def _into(self, each: Instruction) -> None:
        self._workdir = self._place(reading.expanded(each.text.strip("'\""), self._known())).rstrip("/") or "/"

    def _copy(self, each: Instruction) -> None:
        flags = dict(each.flags)
        other = flags.keys() - {"chown", "chmod"}
        mode = flags.get("chmod", "")
        if other or each.heredocs or (mode and not re.fullmatch(r"[0-7]{3,4}", mode)):
            raise self._refused(each, f"{', '.join(f'--{name}' for name in other) or each.text[:60]!r} needs a "
                                      "container engine")  # fmt: skip
        if flags.get("chown", "root").split(":")[0] not in ("root", "0"):
            raise self._refused(each, "on the host's root all files belong to one user")
        words = each.words() or tuple(reading.expanded(word, self._known()) for word in _words(each.text))
        if len(words) < 2:
            raise self._refused(each, "must name a source and a target")
        *sources, target = words
        for source in sources:
            if "://" in source or (each.name == "ADD" and _ARCHIVE.search(source)):
                raise self._refused(each, f"{source!r} would be fetched or unpacked")
        self._steps.append(Copied(sources=tuple(sources), target=self._place(target),
                                  mode=int(mode, 8) if mode else None, where=each))  # fmt: skip

    # ---- commands

    def _run(self, each: Instruction) -> None:
        if each.flags or each.heredocs or each.words() is not None:
            raise self._refused(each, "a RUN of this form needs a container engine")
        for words in self._commands(each):
            problem = self._command(words, each)
            if problem:
                raise self._refused(each, f"{shlex.join(words)[:100]}: {problem}")

    def _commands(self, each: Instruction) -> Iterator[list[str]]:
        """The plain commands of a line, joined by && or ; and nothing else."""
        lexer = shlex.shlex(reading.expanded(each.text, self._known()), posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        try:
            for word in [*lexer, "&&"]:
                if word in ("&&", ";"):
                    yield from [words] if words else []
                    words = []
                elif set(word) <= set(";&|<>()"):
                    raise self._refused(each, f"{each.text[:80]!r} is more than plain commands joined by &&")
                else:
                    words.append(word)
        except ValueError as error:
            raise self._refused(each, f"{each.text[:80]!r} can't be read: {error}") from error

    def _command(self, words: list[str], where: Instruction) -> str:
        """What is wrong with a command on this host; empty: its result is there already, or will be laid."""
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
            words = words[1:]
        name, rest = (os.path.basename(words[0]), words[1:]) if words else ("true", [])
        if name in ("python", "python3") and rest[:2] == ["-m", "pip"]:
            name, rest = "pip", rest[2:]
        if name in ("true", ":") or (name == "set" and all(word.startswith("-") for word in rest)):
            return ""
        if name in ("mkdir", "chmod"):
            return self._made(name, rest, where)
        kinds = {"apt-get": self._apt, "apt": self._apt, "pip": self._pip, "pip3": self._pip, "rm": _rm}
        return kinds[name](rest) if name in kinds else _NOT_HERE

    def _apt(self, rest: list[str]) -> str:
        verbs = [word for word in rest if not word.startswith("-")]
        if not verbs or verbs[0] in _APT_NOTHING:
            return "" if verbs else "is a command whose effect is unknown"
        if verbs[0] != "install":
            return _NOT_HERE
        lacking = [name for name in verbs[1:] if not self._has_package(name)]
        return f"the host lacks {', '.join(lacking)}" if lacking else ""

    def _has_package(self, text: str) -> bool:
        name, _, version = text.partition("=")
        found = self._host.package(name.partition(":")[0])
        return bool(found) and version in ("", found)

    def _pip(self, rest: list[str]) -> str:
        if rest[:1] != ["install"]:
            return "of pip, only install is supported"
        lacking, words = [], iter(rest[1:])
        for word in words:
            if word in ("--no-cache-dir", "--upgrade", "-U", "-q", "--quiet", "--break-system-packages"):
                continue
            found = None if word.startswith("-") else _PIN.fullmatch(word)
            if found is None:
                return f"pip's {word!r} needs a container engine"
            version = self._host.distribution(plain_name(found[1]))
            lacking += [word] if not version or (found[2] and found[2] != version) else []
        return f"the host's Python lacks {', '.join(lacking)}" if lacking else ""

    def _made(self, name: str, rest: list[str], where: Instruction) -> str:
        """mkdir and chmod are carried out in the workspace; patterns are not."""
        options = [word for word in rest if word.startswith("-")]
        paths = [word for word in rest if not word.startswith("-")]
        mode = paths.pop(0) if name == "chmod" and paths else ""
        sound = _SYSTEM_MODE.fullmatch(mode) and not options if name == "chmod" else set(options) <= {"-p", "-v", "-pv"}
        if not sound or not paths or set("".join(paths)) & _NO_SHELL:
            return _NOT_HERE
        self._steps += [Made(path=self._place(path).rstrip("/") or "/", mode=mode, where=where) for path in paths]
        return ""


def _rm(rest: list[str]) -> str:
    """Only for what a package manager leaves behind: the host's own files are never touched."""
    paths = [word for word in rest if not word.startswith("-")]
    other = [path for path in paths if not _CLEARED.fullmatch(path) or ".." in path]
    return f"{other[0]} would be removed on the host's root" if other else ""


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
