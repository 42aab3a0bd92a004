"""``Cheat``: one way to a reward that was not earned, as data; ``filled``: its texts with the places of one run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record

_NOTHING: Mapping[str, str] = MappingProxyType({})


@record
class Cheat:
    """A row of the corpus.

    ``agent`` is a shell script with places such as ``@ORACLE@``; it never holds the secret. ``outside`` names the
    targets on the host while it runs, ``naive`` what the careless grader has in its environment. ``recorded``: the run
    has to be reported as dishonest; else it is enough that the cheat earns nothing. ``twin`` is what the honest agent
    does besides solving the task; empty: the same as for the whole class.
    """

    kind: str
    name: str
    what: str
    agent: str
    task: str = "file"
    outside: tuple[str, ...] = ()
    naive: Mapping[str, str] = _NOTHING
    recorded: bool = False
    twin: str = ""

    @property
    def title(self) -> str:
        """Class and name, which is how a person asks for it."""
        return f"{self.kind}/{self.name}"


def filled(text: str, places: Mapping[str, str]) -> str:
    """Put the places of one run into a text.

    >>> filled("cat @ORACLE@/x", {"ORACLE": "/oracle"})
    'cat /oracle/x'
    """
    for name, value in places.items():
        text = text.replace(f"@{name}@", value)
    return text
