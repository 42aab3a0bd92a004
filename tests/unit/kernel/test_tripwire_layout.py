"""The layout of the tripwire file system: pure data, so pure tests."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.kernel.tripwire.layout import (
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    Entry,
    Veil,
    from_data,
    lay_out,
    read_veils,
    to_data,
)


def test_outer_places_are_bound_before_inner_ones() -> None:
    veils = [Veil(folder=folder, hidden=frozenset((b"x",))) for folder in (b"/a/b/c", b"/", b"/a")]
    layout = lay_out(veils=veils)
    assert [place for _, place, _ in layout.bindings] == [b"/", b"/a", b"/a/b/c"]


def test_a_spot_is_bound_last_and_hides_nothing() -> None:
    layout = lay_out(veils=[Veil(folder=b"/", hidden=frozenset((b"x",)))], spots=[(b"/proc/1/mem", FILE_MODE)])
    assert [place for _, place, _ in layout.bindings] == [b"/", b"/proc/1/mem"]
    node = layout.nodes[layout.nodes[1].children[layout.bindings[1][0]]]
    assert node.spot and (node.path, node.mode, node.hidden) == (b"/proc/1/mem", FILE_MODE, frozenset())
    assert from_data(to_data(layout)).nodes == layout.nodes


def test_every_node_has_one_number_and_every_binding_finds_its_node() -> None:
    visible = tuple(Entry(name=b"%d" % number, mode=FILE_MODE) for number in range(50))
    veils = [Veil(folder=b"/%d" % number, hidden=frozenset((b"x",)), visible=visible) for number in range(20)]
    layout = lay_out(veils=veils)
    assert len(layout.nodes) == 1 + 20 * 51
    for name, place, bound in layout.bindings:
        node = layout.nodes[layout.nodes[1].children[name]]
        assert (node.path, node.hidden, len(bound)) == (place, {b"x"}, 50)
        assert [layout.nodes[child].path for child in node.children.values()] == [
            place + b"/" + entry.name for entry in visible
        ]


def test_links_are_served_and_not_bound() -> None:
    visible = (Entry(name=b"l", mode=LINK_MODE, target=b"t"), Entry(name=b"f", mode=FILE_MODE))
    layout = lay_out(veils=[Veil(folder=b"/a", hidden=frozenset(), visible=visible)])
    assert layout.bindings[0][2] == (b"f",)


@pytest.mark.parametrize("path", [b"/a/h", b"/a/h/deep", b"/a/h/deep/er"])
def test_what_lies_at_or_below_something_hidden_needs_no_node(path: bytes) -> None:
    layout = lay_out(veils=[_veil(b"/a"), _veil(path)])
    assert [place for _, place, _ in layout.bindings] == [b"/a"]


def _veil(folder: bytes) -> Veil:
    return Veil(folder=folder, hidden=frozenset((b"h",)))


def test_a_name_that_only_begins_alike_keeps_its_node() -> None:
    layout = lay_out(veils=[_veil(folder) for folder in (b"/a", b"/a/ho", b"/a/h-x/y")])
    assert len(layout.bindings) == 3


@pytest.mark.parametrize("path", [b"relative", b"/a/../b", b"", b"/a\0b"])
def test_a_place_that_is_no_plain_absolute_path_is_refused(path: bytes) -> None:
    with pytest.raises(UsageError):
        lay_out(veils=[_veil(path)])


def test_hiding_a_place_twice_is_refused() -> None:
    with pytest.raises(UsageError):
        lay_out(veils=[_veil(b"/a")] * 2)


def test_veils_are_read_from_the_disk_one_for_each_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a", "b", "sub/c"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "fifo")
    top = os.fsencode(tmp_path)
    paths = [b"/x/a", b"/x/sub/c", b"/x/a/below", b"/x/not-there"]
    outer, inner = read_veils(paths, source=lambda folder: top + folder.removeprefix(b"/x"))
    assert (outer.folder, outer.hidden) == (b"/x", {b"a", b"not-there"})
    assert {(entry.name, entry.mode, entry.target) for entry in outer.visible} == {
        (b"b", FILE_MODE, b""),
        (b"sub", FOLDER_MODE, b""),
        (b"link", LINK_MODE, b"a"),
        (b"fifo", FILE_MODE, b""),
    }
    assert (inner.folder, inner.hidden, inner.visible) == (b"/x/sub", {b"c"}, ())


def test_a_hidden_path_in_the_root_folder_veils_the_root(tmp_path: Path) -> None:
    (veil,) = read_veils([b"/oracle"], source=lambda _: os.fsencode(tmp_path))
    assert (veil.folder, veil.hidden) == (b"/", {b"oracle"})


def test_a_folder_that_cannot_be_listed_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="cannot list"):
        read_veils([b"/nonexistent/x"])


def test_modes_are_of_the_kinds_they_are_named_after() -> None:
    assert stat.S_ISREG(FILE_MODE) and stat.S_ISDIR(FOLDER_MODE) and stat.S_ISLNK(LINK_MODE)
