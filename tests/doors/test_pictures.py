"""The pictures of the documents: their script works, and they show what the command does today."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from tests import pictures

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]


def test_the_picture_of_the_demo_shows_what_the_demo_tries_today() -> None:
    text = pictures.printed()
    new = pictures.drawn(text)
    ElementTree.fromstring(new)
    tried = pictures.labels(text)
    assert len(tried) >= 10 and pictures.labels(new) == tried
    assert pictures.labels(pictures.PATH.read_text("utf-8")) == tried, "run python -m tests.pictures"
    if "strict isolation available" in text:
        assert pictures.differing(pictures.PATH.read_text("utf-8"), text) == [], "run python -m tests.pictures"


def test_a_row_in_other_words_differs_and_other_figures_do_not() -> None:
    text = "  ✓ write a file   in its private directory, 12 bytes\n  yes  pids           cgroup v1\n"
    text += f"  {'x' * 120}\nstatus OK\n"
    picture = pictures.drawn(text)
    same = text.replace("12 bytes", "1,400.5 bytes").replace("cgroup v1", "a mechanism") + "status OK\n"
    assert pictures.differing(picture, same) == []
    for other in (text.replace("directory", "folder"), text.replace("pids", "disk"), f"{text}more\n"):
        assert pictures.differing(picture, other)


def test_what_is_printed_is_escaped_and_cut_and_the_kernels_own_name_is_left_out() -> None:
    new = pictures.drawn(f"tool 1 on Linux 6.18.44-mine: <b>&\n  ✗ read a file   {'x' * 200}\n")
    ElementTree.fromstring(new)
    assert "on Linux 6.18:" in new and "mine" not in new and "&lt;b&gt;&amp;" in new
    assert "x" * 100 not in new and "…" in new
