"""How far a reader must follow a job and its policy: the files that they enter between the backend and exec.

    python -m tests.unit.walk

Counts one strict run in the caller's process, as a reader meets it: a stay is a row of functions in one file that hold
the object, by an argument, a variable or an attribute of ``self``; a function that goes on after a call is met again. A
return is a stay in a file that was left before. What the object calls of itself does not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import ringfence
from ringfence import Job, SandboxPolicy
from ringfence.engine.run import backend_for

PACKAGE = str(Path(ringfence.__file__).parent)
ROOMS = ("backends", "sandbox", "steps", "roles", "kernel", "checkpoint")
BELOW_THE_DOORS = tuple(f"{PACKAGE}/{name}/" for name in ROOMS)


class Walk:
    """The stays of one kind of object, in order."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.stays: list[str] = []

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(self.stays))

    @property
    def returns(self) -> int:
        return len(self.stays) - len(self.files)

    def see(self, frame: FrameType | None) -> None:
        """Note the file of a function, if it holds the object."""
        if frame is None or not frame.f_code.co_filename.startswith(BELOW_THE_DOORS):
            return
        file = frame.f_code.co_filename.removeprefix(f"{PACKAGE}/")
        if self.stays[-1:] != [file] and any(type(each) is self.kind for each in _held(frame)):
            self.stays.append(file)


def _held(frame: FrameType) -> list[object]:
    own = frame.f_locals.get("self")
    return [*frame.f_locals.values(), *getattr(own, "__dict__", {}).values()]


def walks(run: Callable[[], object]) -> dict[str, Walk]:
    """What is run, looked at from the outside."""
    found = {"policy": Walk(SandboxPolicy), "job": Walk(Job)}

    def look(frame: FrameType, event: str, _: object) -> None:
        for walk in found.values() if event in ("call", "return") else ():
            walk.see(frame if event == "call" else frame.f_back)

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def strict_run(*, in_folder: bool) -> dict[str, Walk]:
    """One job under strict, from the backend to its end; ``in_folder``: it works on a directory of the caller's."""
    policy = SandboxPolicy(isolation="strict", hidden_paths=("/srv",))
    job = Job(argv=("true",), cwd=str(Path(__file__).parent) if in_folder else None)
    backend = backend_for(policy.isolation)

    def run() -> None:
        box = backend.open(policy)
        with open("/dev/null", "r+b") as null:
            box.start(job, (null.fileno(),) * 3).close()
        box.close()

    return walks(run)


def main() -> None:
    for in_folder in (False, True):
        print("in a directory of the caller's" if in_folder else "in a private directory")
        for name, walk in strict_run(in_folder=in_folder).items():
            print(f"  {name}: {len(walk.files)} files, {len(walk.stays)} stays, {walk.returns} returns")
            print("    " + " ".join(walk.stays))


if __name__ == "__main__":
    main()
