"""The first process of a job's container, where the package has it compiled (``native/first.c``): it starts the job,
passes signals on, collects the dead and exits as the job did.

An engine reports an end in one byte: 137 means a job that SIGKILL ended, or one that exited with 137. Our process marks
the second case with a word after everything else that the container prints. The word is no secret: a job that prints it
itself gains no more than by ``exit 137``.
"""

from __future__ import annotations

import os

from ringfence.container.hardening import Bind, ContainerSpec
from ringfence.kernel.calls import native
from ringfence.model.record import replace

INSIDE = "/ringfence/first"
WORD = b"\0ringfence: the job has exited with this status"
"""As ``first.c`` has it; its only NUL begins it."""


def added(spec: ContainerSpec, *, is_local: bool) -> ContainerSpec:
    """Return the container with our first process instead of the engine's, if it has one, can see our files, and shows
    no host path in the same place."""
    source = os.path.realpath(native.first_path())
    if not spec.init or not is_local or not native.is_wanted() or not os.access(source, os.R_OK | os.X_OK):
        return spec
    if any(f"{INSIDE}/".startswith(f"{target}/") for target in (*spec.tmpfs, *(bind.target for bind in spec.binds))):
        return spec
    ours = Bind(source=source, target=INSIDE)
    return replace(spec, argv=(INSIDE, *spec.argv), binds=(*spec.binds, ours), init=False)


def is_in(spec: ContainerSpec) -> bool:
    return any(bind.target == INSIDE for bind in spec.binds)


def left_away(spec: ContainerSpec) -> ContainerSpec:
    """Return the container with the engine's in place of ours."""
    others = tuple(bind for bind in spec.binds if bind.target != INSIDE)
    return replace(spec, argv=spec.argv[1:], binds=others, init=True)


class LastWord:
    """Removes the word from the end of a stream, and passes all else on; a possible beginning is held back."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def heard(self) -> bool:
        """Whether the word was the last thing so far."""
        return self._held == WORD

    def pass_on(self, data: memoryview) -> memoryview:
        whole = memoryview(self._held + bytes(data)) if self._held else data
        tail = bytes(whole[-len(WORD) :])
        at = tail.rfind(b"\0")
        self._held = tail[at:] if at >= 0 and WORD.startswith(tail[at:]) else b""
        return whole[: len(whole) - len(self._held)]

    def rest(self) -> bytes:
        """What was held back and is not the word, at the end of the stream."""
        return b"" if self.heard else self._held
