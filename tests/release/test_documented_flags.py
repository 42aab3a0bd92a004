"""What the flags of docs/how-to/run-in-a-container.md take away from any container, in a real engine, and what is left
in one without any of them."""

from __future__ import annotations

import json
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


_LEFT = {"network", "readable_paths", "writable_paths", "syscalls", "memory", "pids", "disk", "wall_time"}
_WORK = "mkdir /tmp/work && echo secret > /tmp/beside && cd /tmp/work && cat ../beside && "


def _without_any_flag(image: str, user: str, *more: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a job that reads a file beside its directory, and writes one in it."""
    ours = ("--volume", f"{ROOT}/src:/src:ro", "--env", "PYTHONPATH=/src", "--env", "HOME=/tmp", "--user", user)
    job = f"python3 -m ringfence run {' '.join(more)} -- sh -c 'cat ../beside; echo kept > file'; cat file"
    command = ["docker", "run", "--rm", "--pull=never", "--network=none", *ours, image, "sh", "-c", _WORK + job]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("user", ["0", "10001:10001"])
def test_landlock_and_seccomp_are_left_under_an_engines_defaults(python_image: str, user: str) -> None:
    """Whoever starts the job reads the file: that is the control."""
    refused = _without_any_flag(python_image, user)
    assert refused.stdout == "secret\n" and "seccomp=FILE" in refused.stderr
    done = _without_any_flag(python_image, user, "--allow-partial", "--json")
    told, end = json.JSONDecoder().raw_decode(done.stdout.removeprefix("secret\n"))
    applied = {name for name, entry in told["enforced"].items() if entry["applied"]}
    assert applied >= _LEFT and not told["enforced"]["namespaces"]["applied"], told
    assert told["stdout"] == "" and "Permission denied" in told["stderr"], told
    if user != "0":  # root's job has an id of its own, which can't write what belongs to root
        assert done.stdout.endswith("}\nkept\n"), end
