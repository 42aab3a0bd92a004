"""The compose file of a Terminal-Bench 1 task: one service, ``client``, as the benchmark's own template has it.

Anything beyond that (more services, ports, capabilities, devices, directories of the host) is refused by its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ringfence.model.limits import READ_UNIT, Unit
from ringfence.model.policy_keys import Problem
from ringfence.model.record import record
from ringfence.proctor.foreign import checking
from ringfence.proctor.foreign.checking import at, refused

SERVICE = "client"
_OWN = re.compile(r"\$\{?(T_BENCH_[A-Z_]+|TEST_DIR)\}?")
_TEXTS = ("version", "services.client.image", "services.client.container_name", "services.client.environment",
          "services.client.mem_limit", "services.client.deploy.resources.limits.memory")  # fmt: skip


def _volumes(value: object) -> str:
    """The directories for logs that the benchmark itself has; nothing else of the host is shown."""
    rows = value if isinstance(value, list) else [value]
    wrong = [row for row in rows if not isinstance(row, str) or not all(map(_OWN.fullmatch, row.split(":")))]
    return f"{wrong[0]!r} is a directory of the host or a volume, which a task does not get" if wrong else ""


def _variables(value: object) -> str:
    try:
        variables_of(value)
    except ValueError as error:
        return str(error)
    return ""


def _build(value: object) -> str:
    if isinstance(value, str):
        return "" if value in (".", "./") else f"{value!r} is not the task's directory"
    if not isinstance(value, Mapping):
        return f"{value!r} is not a directory"
    wrong = [key for key in value if key not in ("context", "dockerfile")]
    if wrong or value.get("context", ".") not in (".", "./"):
        return f"{wrong[0] if wrong else value['context']!r} is not honoured; there are dockerfile and context: ."
    return checking.filled(value.get("dockerfile", "Dockerfile"))


def _memory(value: object) -> str:
    try:
        READ_UNIT[Unit.BYTES](value)
    except ValueError as error:
        return str(error)
    return ""


_KEYS: checking.Table = {
    "version": checking.text,
    "name": checking.text,
    "services": {
        SERVICE: {
            "build": _build, "image": checking.text, "container_name": checking.text, "command": None,
            "environment": _variables, "volumes": _volumes, "mem_limit": _memory, "cpus": checking.number,
            "working_dir": checking.filled, "user": refused("the user of the image is used"),
            "network_mode": checking.one_of("none", "bridge", "default"),
            "stdin_open": checking.flag, "tty": checking.flag, "init": checking.flag, "restart": checking.text,
            "deploy": {"resources": {"limits": {"memory": _memory, "cpus": None}, "reservations": None}},
        },
    },
}  # fmt: skip


@record
class Compose:
    """What is left of a compose file."""

    dockerfile: str = "Dockerfile"
    environment: Mapping[str, str]
    memory_bytes: int = 0
    """0: nothing is said."""
    workdir: str = ""
    network: bool = True


def read(path: str) -> Compose:
    """PolicyError names file, line and key of all that is wrong."""
    return checking.read_yaml(path, _made, _TEXTS)


def _made(values: Mapping[str, object]) -> Compose:
    problems = [*checking.problems(values, _KEYS), *_missing(values)]
    if problems:
        raise checking.first_of(problems, values)
    service = checking.mapping_at(values, f"services.{SERVICE}")
    build = service.get("build", ".")
    memory = at(service, "deploy.resources.limits.memory", service.get("mem_limit"))
    return Compose(
        dockerfile=str(build.get("dockerfile", "Dockerfile")) if isinstance(build, Mapping) else "Dockerfile",
        environment=variables_of(service.get("environment", ())),
        memory_bytes=0 if memory is None else int(str(READ_UNIT[Unit.BYTES](memory))),
        workdir=str(service.get("working_dir", "")), network=service.get("network_mode") != "none",
    )  # fmt: skip


def _missing(values: object) -> Iterator[Problem]:
    if isinstance(values, Mapping) and not isinstance(at(values, f"services.{SERVICE}"), Mapping):
        yield "services", f"has no {SERVICE}, which the agent works in"


def variables_of(value: object) -> dict[str, str]:
    """A list of ``NAME=value`` or a mapping. The benchmark's own names are left out: we set those."""
    if isinstance(value, Mapping):
        rows = [(str(name), each) for name, each in value.items()]
    elif isinstance(value, list | tuple):
        split = [str(row).partition("=") for row in value]
        rows = [(name, text if equal else None) for name, equal, text in split]
    else:
        raise ValueError(f"{value!r} is neither a list nor a section of variables")
    found = {}
    for name, text in rows:
        if text is None or not name or "\0" in f"{name}{text}":
            raise ValueError(f"{name!r} has no value of its own: a task gets none of your variables")
        if "$" in str(text) and not _OWN.fullmatch(str(text)):
            raise ValueError(f"{name!r} asks for one of your variables: {str(text)[:60]!r}")
        if "$" not in str(text):
            found[name] = str(text)
    return found
