"""A user of the documents in the world of ``tests/egress_world``: its servers have the names that the examples have,
and its system trusts their certificates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.egress_world import API, PRIVATE, World
from tests.examples import environment_of

NAMES = {
    "pypi.org": API, "files.pythonhosted.org": API, "registry.npmjs.org": API, "pypi.corp.example": PRIVATE,
    "api.corp.example": PRIVATE, "eu.files.example.org": API,
}  # fmt: skip
FILES = "https://files.pythonhosted.org"
KEPT = ("PATH", "LANG", "XDG_STATE_HOME", "PYTHONPATH")
"""Of the caller's environment: no setting of this machine's pip, npm or TLS is left."""


class Place:
    """A directory of a user in that world."""

    def __init__(self, world: World, folder: Path, home: Path) -> None:
        """``folder``: the world's own; ``home``: the user's."""
        self.world, self.served, self.authority = world, folder / "served", folder / "authority.pem"
        self.home, self.work = home, home / "work"
        self.work.mkdir()
        found = environment_of(home)
        self.environment = {name: found[name] for name in KEPT if name in found} | {"HOME": str(home)}

    def shell(self, text: str) -> str:
        return self.world.shell(text, self.work, self.environment)


@contextmanager
def world_in(folder: Path) -> Iterator[World]:
    (folder / "served").mkdir()
    world = World(folder, NAMES)
    try:
        yield world
    finally:
        world.close()
