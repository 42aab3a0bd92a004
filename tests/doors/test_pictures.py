"""The pictures of the documents: their script works, and they show what the command does today."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
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


NAMESPACE = "{http://www.w3.org/2000/svg}"


def _spans(picture: ElementTree.Element) -> list[tuple[float, float, float, str]]:
    """Each text with its line, its begin and its end, as wide as a wide font would make it: 0.6 em a character."""
    spans = []
    for part in picture.iter():
        for each in part.findall(f"{NAMESPACE}text"):
            words, x = "".join(each.itertext()), float(each.get("x", 0))
            size = float(each.get("font-size") or part.get("font-size") or picture.get("font-size") or 16)
            width = 0.6 * size * len(words)
            begin = x - width / 2 if each.get("text-anchor") == "middle" else x
            spans.append((float(each.get("y", 0)), begin, begin + width, words))
    return spans


def _crowded(picture: ElementTree.Element) -> list[str]:
    """Texts that leave the picture, and pairs that run into each other."""
    _, _, width, height = map(float, picture.get("viewBox", "").split())
    spans = _spans(picture)
    out = [words for y, begin, end, words in spans if begin < 0 or end > width or not 0 < y < height]
    return out + [f"{words} / {other[3]}" for (y, begin, end, words), other in combinations(spans, 2)
                  if abs(y - other[0]) < 8 and begin < other[2] and other[1] < end]  # fmt: skip


@pytest.mark.parametrize("path", sorted(pictures.PATH.parent.glob("*.svg")), ids=lambda path: path.stem)
def test_no_text_of_a_picture_is_cut_off_or_runs_into_another(path: Path) -> None:
    assert _crowded(ElementTree.parse(path).getroot()) == []


@pytest.mark.parametrize(("x", "crowded"), [(20, []), (100, ["some words"]), (55, ["some words / there"])])
def test_a_crowded_text_is_noticed(x: int, crowded: list[str]) -> None:
    drawn = f'<text x="{x}" y="20">some words</text><text x="110" y="22">there</text>'
    svg = f'<svg xmlns="{NAMESPACE[1:-1]}" viewBox="0 0 150 40" font-size="10">{drawn}</svg>'
    assert _crowded(ElementTree.fromstring(svg))[: len(crowded) or 1] == crowded


def test_what_is_printed_is_escaped_and_cut_and_the_kernels_own_name_is_left_out() -> None:
    new = pictures.drawn(f"tool 1 on Linux 6.18.44-mine: <b>&\n  ✗ read a file   {'x' * 200}\n")
    ElementTree.fromstring(new)
    assert "on Linux 6.18:" in new and "mine" not in new and "&lt;b&gt;&amp;" in new
    assert "x" * 100 not in new and "…" in new
