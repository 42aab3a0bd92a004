"""What the flags of docs/how-to/run-in-a-container.md take away from any container, in a real engine."""

from __future__ import annotations

import subprocess

import pytest
from tests.documented_flags import ROOT, documented_flags

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
_STATUS = "cat /proc/self/status; touch /etc/changed && echo CHANGED"


def _told(image: str, *flags: str) -> str:
    """By root of a container, of the best that an escaped job could become."""
    command = ["docker", "run", "--rm", "--pull=never", "--network=none", *flags, "--user", "0", "--entrypoint", "sh"]
    done = subprocess.run([*command, image, "-c", _STATUS], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def test_the_other_flags_take_away_what_they_say(python_image: str) -> None:
    """Without them root has all of it: that is the control."""
    closed = _told(python_image, *(word for flag in documented_flags() for word in flag))
    open_ = _told(python_image)
    for line in ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in closed and line not in open_
    assert "CHANGED" in open_ and "CHANGED" not in closed
