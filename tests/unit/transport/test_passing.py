"""How much one channel takes before anybody reads."""

from __future__ import annotations

import os

import pytest

from ringfence.transport import passing

pytestmark = pytest.mark.system


def _taken(body: bytes) -> int:
    """How many messages are under way when no more are taken."""
    ours, theirs = passing.channel(is_narrow=True)
    os.set_blocking(ours, False)
    count = 0
    try:
        while True:
            passing.send(ours, passing.LEADER, [ours], body, patient=False)
            count += 1
    except BlockingIOError:
        return count
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_narrow_channel_takes_no_more_than_a_full_warden_has_places_for() -> None:
    """Whatever the host's settings are, and however short the messages."""
    assert passing.MOST_UNDER_WAY // 2 < _taken(b"") <= passing.MOST_UNDER_WAY
    assert 8 < _taken(bytes(4096)) < _taken(b"")
