"""Roots of images are unpacked safely, whoever made the archive: each attack with what it would have done."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.container.tar_stream import TarStream
from ringfence.container.unpacking import Unpacked, unpack
from ringfence.errors import SetupError, UsageError

pytestmark = pytest.mark.privileges

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: object) -> Entry:
    made = tarfile.TarInfo(name)
    made.type, made.size, made.mode, made.mtime = kind, len(data), 0o644, 1000
    for field, value in fields.items():
        setattr(made, field, value)
    return made, data


def archive(*entries: Entry, form: int = tarfile.PAX_FORMAT) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as tar:
        for made, data in entries:
            tar.addfile(made, io.BytesIO(data))
    return written.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def unpacked(data: bytes, root: Path, **limits: int) -> Unpacked:
    return unpack(TarStream(io.BytesIO(data).read), str(root), **limits)


def folder(name: str, mode: int = 0o755) -> Entry:
    return entry(name, tarfile.DIRTYPE, mode=mode)


def test_a_root_arrives_as_it_is(root: Path) -> None:
    long = "/".join(["d" * 90] * 4)
    found = unpacked(archive(
        folder("./"), folder("./etc"), folder("./shut", 0), entry("./etc/shadow", data=b"secret", mode=0o640),
        entry("./shut/in", data=b"x"), entry("bin", tarfile.SYMTYPE, linkname="usr/bin"), entry(long, data=b"deep"),
        entry("usr/bin/a", data=b"a" * 3000, mode=0o755), entry("usr/bin/b", tarfile.LNKTYPE, linkname="usr/bin/a"),
        entry("out", tarfile.SYMTYPE, linkname="/../../etc/passwd"), entry("ümlaut\udcff", data=b""),
        entry("twice", tarfile.LNKTYPE, linkname="bin"),
    ), root)  # fmt: skip
    assert found.entries == 12 and found.bytes == 6 + 1 + 4 + 3000 and not found.left_out
    assert (root / "etc/shadow").read_bytes() == b"secret"
    assert stat.S_IMODE((root / "etc/shadow").stat().st_mode) == 0o640
    assert (root / "etc/shadow").stat().st_mtime == 1000 == (root / "etc").stat().st_mtime
    assert os.readlink(root / "bin") == "usr/bin" and os.readlink(root / "out") == "/../../etc/passwd"
    assert os.readlink(root / "twice") == "usr/bin"
    assert (root / "usr/bin/a").stat().st_nlink == 2 and os.access(root / "usr/bin/b", os.X_OK)
    assert (root / long).read_bytes() == b"deep"
    assert stat.S_IMODE((root / "shut").stat().st_mode) == 0o700, "we can always read and remove it"
    assert stat.S_IMODE((root / "usr").stat().st_mode) == 0o755, "no entry said anything of it"
    assert b"\xff" in b"".join(os.listdir(os.fsencode(root)))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_other_forms_are_read_as_well(form: int, root: Path) -> None:
    name = f"{'a' * 90}/{'b' * 90}"
    unpacked(archive(entry(name, data=b"1"), entry("l", tarfile.SYMTYPE, linkname="t" * 99), form=form), root)
    assert (root / name).read_bytes() == b"1"


def test_what_gives_rights_is_left_behind(root: Path) -> None:
    found = unpacked(archive(
        entry("su", data=b"x", mode=0o6755, uid=0), folder("sticky", 0o3777),
        entry("dev/sda", tarfile.BLKTYPE, devmajor=8), entry("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("pipe", tarfile.FIFOTYPE),
        entry("caps", data=b"x", pax_headers={"SCHILY.xattr.security.capability": "x"}),
        entry(".dockerenv"), entry("future", data=b"x", mtime=1 << 33),
    ), root)  # fmt: skip
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755 and (root / "su").stat().st_uid == os.geteuid()
    assert stat.S_IMODE((root / "sticky").stat().st_mode) == 0o1777
    assert found.left_out == ("dev/sda", "dev/null", "pipe") and found.left_out_count == 3
    assert sorted(os.listdir(root)) == ["caps", "future", "sticky", "su"]
    assert os.listxattr(root / "caps") == []
    assert (root / "future").stat().st_mtime < 1 << 33


LEADING_OUT: dict[str, tuple[Entry, ...]] = {
    "dots": (entry("a/../../evil", data=b"x"),),
    "absolute": (entry("/evil", data=b"x"),),
    "through a link": (entry("way", tarfile.SYMTYPE, linkname=".."), entry("way/evil", data=b"x")),
    "through an absolute link": (entry("way", tarfile.SYMTYPE, linkname="/tmp"), entry("way/evil", data=b"x")),
    "a directory over a link": (entry("way", tarfile.SYMTYPE, linkname=".."), folder("way"),
                                entry("way/evil", data=b"x")),
    "a file over a link": (entry("way", tarfile.SYMTYPE, linkname="../evil"), entry("way", data=b"x")),
    "a hard link out": (entry("evil", tarfile.LNKTYPE, linkname="../target"),),
    "a hard link to an absolute path": (entry("evil", tarfile.LNKTYPE, linkname="/etc/passwd"),),
    "a hard link through a link": (entry("way", tarfile.SYMTYPE, linkname=".."), entry("evil", tarfile.LNKTYPE, linkname="way/target")),  # noqa: E501
    "a hard link to a directory": (folder("d"), entry("evil", tarfile.LNKTYPE, linkname="d")),
    "a hard link to nothing": (entry("evil", tarfile.LNKTYPE, linkname="later"),),
    "through a file": (entry("f", data=b"x"), entry("f/evil", data=b"x")),
    "the same twice": (entry("f", data=b"x"), entry("f", data=b"y")),
    "too deep": (entry("/".join(["d"] * 600), data=b"x"),),
    "a name too long": (entry("n" * 300, data=b"x"),),
    "a link that says nothing": (entry("l", tarfile.SYMTYPE, linkname=""),),
    "without a name": (entry("./", data=b"x"),),
}  # fmt: skip


@pytest.mark.parametrize("attack", LEADING_OUT, ids=str)
def test_nothing_leads_out(attack: str, root: Path) -> None:
    (root.parent / "target").write_text("the host's")
    with pytest.raises(UsageError, match="the archive"):
        unpacked(archive(*LEADING_OUT[attack]), root)
    assert sorted(os.listdir(root.parent)) == ["root", "target"]
    assert (root.parent / "target").read_text() == "the host's" and (root.parent / "target").stat().st_nlink == 1


def test_how_much_is_bounded_and_zeros_are_holes(root: Path) -> None:
    zeros = bytes(8 << 20)
    found = unpacked(archive(entry("sparse", data=zeros + b"end")), root)
    assert found.bytes == len(zeros) + 3 and (root / "sparse").read_bytes() == zeros + b"end"
    assert (root / "sparse").stat().st_blocks * 512 < len(zeros)
    with pytest.raises(UsageError, match="more than 100 bytes"):
        unpacked(archive(entry("a", data=b"x" * 60), entry("b", data=b"x" * 60)), root, max_bytes=100)
    with pytest.raises(UsageError, match="more than 2 files"):
        unpacked(archive(folder("c"), folder("d"), folder("e")), root, max_entries=2)


def _huge(data: bytes) -> bytes:
    """The first entry says that it has eight exabytes."""
    header = bytearray(data[:512])
    header[124:136] = b"\x80" + (1 << 62).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "no archive": lambda data: b"x" * 1024,
    "cut in a header": lambda data: data[:700],
    "cut in a file": lambda data: data[:1500],
    "a wrong sum": lambda data: data[:100] + b"9" + data[101:],
    "a size beyond all": _huge,
}


@pytest.mark.parametrize("damage", DAMAGED, ids=str)
def test_a_damaged_archive_is_refused(damage: str, root: Path) -> None:
    whole = archive(entry("a", data=b"x" * 2000), entry("b", data=b"y" * 2000))
    with pytest.raises(UsageError, match=r"archive|the image holds more"):
        unpacked(DAMAGED[damage](whole), root)


@pytest.mark.parametrize(("headers", "word"), [
    ({"GNU.sparse.major": "1"}, "sparse"), ({"size": "-5"}, "number"), ({"size": "9" * 30}, "number"),
    ({"mtime": "never"}, "number"),
])  # fmt: skip
def test_headers_that_lie_are_refused(headers: dict[str, str], word: str, root: Path) -> None:
    with pytest.raises(UsageError, match=word):
        unpacked(archive(entry("a", data=b"x", pax_headers=headers)), root)


def test_a_header_has_no_say_in_how_much_memory_is_used(root: Path) -> None:
    with pytest.raises(UsageError, match="header of"):
        unpacked(archive(entry("a", pax_headers={"comment": "x" * (2 << 20)})), root)


def test_extra_headers_are_bounded_before_an_entry_and_in_all(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an entry among them no other bound holds: each may be a mebibyte, and they never end."""
    extra = archive(entry("a", pax_headers={"comment": "x"}))[:1024]

    with pytest.raises(UsageError, match="more than 8 headers"):
        unpack(TarStream(_Again(extra).read), str(root))
    both = archive(entry("long" * 60), entry("b" * 120, tarfile.SYMTYPE, linkname="c" * 150), form=tarfile.GNU_FORMAT)
    assert unpacked(both, root).entries == 2
    monkeypatch.setattr("ringfence.container.tar_stream.MAX_EXTRA_BYTES", 4 << 10)
    many = archive(*(entry(f"f{number}", pax_headers={"comment": "x" * 600}) for number in range(8)))
    with pytest.raises(UsageError, match="bytes of them in all"):
        unpacked(many, root)


class _Again:
    """The same bytes without end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def read(self, count: int) -> bytes:
        found = self._data[self._place : self._place + count]
        self._place = (self._place + len(found)) % len(self._data)
        return found


def test_an_error_of_the_disk_is_one_of_the_host(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(SetupError, match="unpack the image: No space") as told:
        unpacked(archive(entry("a", data=b"y")), root)
    assert told.value.errno == errno.ENOSPC
