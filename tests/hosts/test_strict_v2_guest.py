"""STRICT itself on a real cgroup v2: in a guest, as root and as an ordinary user with a delegated group."""

from __future__ import annotations

import guest
import pytest

TESTS = ("tests/hosts/in_guest_strict.py",)


@pytest.mark.parametrize("who", ["root", "user"])
def test_strict_keeps_its_promises_on_cgroup_v2(who: str) -> None:
    guest.assert_kept(guest.run(who, TESTS, {}, deadline_s=1800), TESTS)
