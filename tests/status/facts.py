"""What a row of the status table says of our side, each as something that a test can look at.

Every kind has ``shown``, its words on the page, and ``wrong()``: what is not as it says; empty: all of it is.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
NEEDED = "needed"
"""In place of a default: there is none."""


class Fact(Protocol):
    """One of the kinds below."""

    @property
    def shown(self) -> str: ...

    def wrong(self) -> str: ...


def resolved(dotted: str) -> Any:
    """What a dotted name means; an error where there is no such thing."""
    words = dotted.split(".")
    found: Any = importlib.import_module(words[0])
    for place, word in enumerate(words[1:], 2):
        if not hasattr(found, word):
            importlib.import_module(".".join(words[:place]))
        found = getattr(found, word)
    return found


@dataclass(frozen=True)
class Name:
    """Something of Python's, by its dotted name."""

    dotted: str

    @property
    def shown(self) -> str:
        return f"`{self.dotted}`"

    def wrong(self) -> str:
        try:
            found = resolved(self.dotted)
        except (ImportError, AttributeError) as error:
            return f"{self.dotted}: {error}"
        differs = self.differs(found)
        return f"{self.dotted}: {differs}" if differs else ""

    def differs(self, found: Any) -> str:
        """What of it is not as it should be."""
        return ""


@dataclass(frozen=True)
class Call(Name):
    """A function or method with its first parameters, by name and in this order."""

    parameters: str = ""

    @property
    def shown(self) -> str:
        return f"`{self.dotted}({self.parameters})`"

    def differs(self, found: Any) -> str:
        taken = [name for name in inspect.signature(found).parameters if name not in ("self", "cls")]
        asked = self.parameters.split(", ") if self.parameters else []
        return "" if taken[: len(asked)] == asked else f"it takes {taken}"


def needed(*names: str) -> dict[str, object]:
    """Fields without a default."""
    return dict.fromkeys(names, NEEDED)


@dataclass(frozen=True)
class Fields(Name):
    """A class of data with these fields among others, in this order, and their defaults."""

    fields: Mapping[str, object]

    def differs(self, found: Any) -> str:
        there = {name: default for name, default in _fields(found).items() if name in self.fields}
        return "" if list(there.items()) == list(self.fields.items()) else f"its fields are {there}"


def _fields(kind: Any) -> dict[str, object]:
    """Names and defaults: of a dataclass, or of a dict with known keys."""
    if not dataclasses.is_dataclass(kind):
        return needed(*kind.__annotations__)
    return {field.name: _default(field) for field in dataclasses.fields(kind)}


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        made: object = field.default_factory()
        return made
    return NEEDED if field.default is dataclasses.MISSING else field.default


@dataclass(frozen=True)
class Members(Name):
    """A closed set with exactly these members."""

    members: Mapping[str, object]

    def differs(self, found: Any) -> str:
        there = {member.name: member.value for member in found}
        return "" if there == self.members else f"its members are {there}"


@dataclass(frozen=True)
class Value(Name):
    """A constant of our code that has a name or number of the specification's."""

    value: object

    @property
    def shown(self) -> str:
        return f"`{self.value}`"

    def differs(self, found: Any) -> str:
        return "" if found == self.value else f"{found!r}"


@dataclass(frozen=True)
class Command:
    """A command of ours with options and words that its parser knows."""

    command: str
    options: str = ""

    @property
    def shown(self) -> str:
        return f"`{f'{self.command} {self.options}'.strip()}`"

    def wrong(self) -> str:
        known = options_of(*self.command.split())
        if known is None:
            return f"there is no command {self.command}"
        unknown = [word for word in self.options.split() if word not in known]
        return f"{self.command} does not know {' '.join(unknown)}" if unknown else ""


@cache
def options_of(program: str, name: str) -> frozenset[str] | None:
    """Options and words that a command's own parser takes; None: there is no such command."""
    from ringfence.cli import COMMANDS, PROCTOR_COMMANDS
    from ringfence.cli.parser import Parser

    commands = {"ringfence": COMMANDS, "proctor": PROCTOR_COMMANDS}[program]
    if name not in commands:
        return None
    module = importlib.import_module(f"ringfence.cli.{commands[name][0]}")
    parser = Parser(f"{program} {name}", module)
    module.configure(parser)
    return frozenset(str(word) for each in parser._actions for word in (*each.option_strings, *(each.choices or ())))


@dataclass(frozen=True)
class Codes:
    """Statuses with their exit codes."""

    codes: Mapping[str, int]
    shown: str = "`ringfence.Status`"

    def wrong(self) -> str:
        from ringfence.model.outcome import FIXED_RC

        there = {str(status): code for status, code in FIXED_RC.items()}
        return "" if there == self.codes else f"statuses: {there}"


@dataclass(frozen=True)
class Metrics:
    """Metrics under their names for Prometheus."""

    names: tuple[str, ...]

    @property
    def shown(self) -> str:
        return ", ".join(f"`{name}`" for name in self.names)

    def wrong(self) -> str:
        from ringfence.metrics.table import METRICS

        missing = [name for name in self.names if name not in {metric.name for metric in METRICS}]
        return f"there is no metric {missing}" if missing else ""


@dataclass(frozen=True)
class Keys:
    """Keys of the configuration of containers, with their defaults."""

    defaults: Mapping[str, object]

    @property
    def shown(self) -> str:
        return ", ".join(f"`{path}`" for path in self.defaults)

    def wrong(self) -> str:
        from ringfence.docker_sandbox.config import DockerConfig
        from ringfence.docker_sandbox.config_keys import BY_PATH

        there = {path: getattr(DockerConfig, BY_PATH[path].field) for path in self.defaults if path in BY_PATH}
        return "" if there == self.defaults else f"keys: {there}"


@dataclass(frozen=True)
class File:
    """A file or directory of the repository."""

    path: str

    @property
    def shown(self) -> str:
        aim = self.path.removeprefix("docs/") if self.path.startswith("docs/") else f"../{self.path}"
        return f"[{self.path}]({aim})"

    def wrong(self) -> str:
        return "" if (ROOT / self.path).exists() else f"there is no {self.path}"
