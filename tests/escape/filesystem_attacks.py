"""Attacks on the file system: reading what is not shown, writing what is not the job's."""

from __future__ import annotations

from collections.abc import Mapping

from tests.escape.attack import Attack, Stage


def _secret(stage: Stage) -> Mapping[str, object]:
    path = stage.folder / "secret.txt"
    path.write_text("the answer")
    path.chmod(0o644)
    return {"path": str(path)}


READ = "try:\n if open(GIVEN['path']).read() == 'the answer': print('ESCAPED')\nexcept OSError as e: print(e)\n"

ATTACKS = [
    Attack(name="read a file that is not shown", family="filesystem", what="a file outside the workspace is read",
           prepare=_secret, probe=READ),
]  # fmt: skip
