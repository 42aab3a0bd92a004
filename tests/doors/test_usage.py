"""``ringfence run --usage`` and ``ringfence usage``: what a run used over time, as a file, a graph and a picture."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringfence.cli.usage_recording import KEPT, Recording
from ringfence.errors import UsageError
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.printed import PLAIN, graph, squeezed
from ringfence.monitor import usage_log
from ringfence.monitor.sample import Sample
from ringfence.monitor.usage_log import DENSE_LINES, UsageLog

pytestmark = pytest.mark.privileges

EATER = "import time\nmass = b'x' * (60 << 20)\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


@pytest.fixture
def call(ringfence_command: list[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}

    def ringfence(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*ringfence_command, *words], capture_output=True, text=True, timeout=120, check=False,
                              env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL)  # fmt: skip

    return ringfence


def _recorded(path: Path, samples: int = 40) -> Path:
    log = UsageLog(str(path), {"command": ["make", "test"], "isolation": "process"})
    for number in range(samples):
        log.add(Sample(time_s=number / 10, cpu_percent=100.0 if number >= 20 else 0.0, memory_bytes=number << 20))
    log.finish({"status": "OK", "rc": 0})
    return path


def test_a_run_is_recorded_when_asked_and_found_by_its_id(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = call("run", "--usage", "--", sys.executable, "-c", EATER)
    assert done.returncode == 0, done.stderr
    name = done.stderr.split()[-1]
    told = json.loads(call("usage", name[:5], "--json").stdout)
    assert told["about"]["command"][0] == sys.executable
    assert told["end"]["status"] == "OK"
    assert max(sample["memory_bytes"] for sample in told["samples"]) > 60 << 20
    assert max(sample["cpu_s"] for sample in told["samples"]) > 0.2
    assert [sample["time_s"] for sample in told["samples"]] == sorted(sample["time_s"] for sample in told["samples"])


def test_without_the_flag_nothing_is_written(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert call("run", "--", "true").returncode == 0
    assert not (tmp_path / "state" / "ringfence" / "usage").exists()


def test_a_file_of_ones_own_is_whole_or_not_there(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert call("run", "--usage-file", "u.jsonl", "--quiet", "--", "true").stderr == ""
    assert usage_log.read(str(tmp_path / "u.jsonl")).end["rc"] == 0
    assert call("run", "--usage-file", "v.jsonl", "--", "/no/such/program").returncode == 127
    assert sorted(path.name for path in tmp_path.glob("*.jsonl*")) == ["u.jsonl"]
    missing = call("run", "--usage-file", "no/such/folder/u.jsonl", "--", "true")
    assert missing.returncode == 2 and "no/such/folder" in missing.stderr


def test_a_link_beside_the_file_is_not_written_through(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A guest leaves one, a commit carries it over."""
    (tmp_path / "victim").write_text("precious")
    for name in ("u.jsonl.part", "u.jsonl", "p.svg.part", "p.svg"):
        os.symlink("victim", tmp_path / name)
    assert call("run", "--usage-file", "u.jsonl", "--quiet", "--", "true").returncode == 0
    assert call("usage", "./u.jsonl", "--svg", "p.svg").returncode == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "u.jsonl").stat().st_mode & 0o777 == 0o600 and not (tmp_path / "p.svg").is_symlink()


def test_no_umask_opens_the_state_folder_to_others(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    before = os.umask(0)
    try:
        assert call("run", "--usage", "--", "true").returncode == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").rglob("*")}
    assert modes.pop("ringfence") == modes.pop("usage") == 0o700
    assert set(modes.values()) == {0o600}


def test_only_the_latest_recordings_are_kept(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "state" / "ringfence" / "usage"
    folder.mkdir(parents=True)
    for number in range(KEPT + 5):
        (folder / f"old{number:03}.jsonl").write_text("")
        os.utime(folder / f"old{number:03}.jsonl", (number, number))
    for age_s in (60, 90_000):
        (folder / f"part{age_s}.jsonl.part").write_text("")
        os.utime(folder / f"part{age_s}.jsonl.part", (time.time() - age_s,) * 2)
    assert call("run", "--usage", "--", "true").returncode == 0
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if name.startswith("part")] == ["part60.jsonl.part"], "the other's writer was killed"
    names.remove("part60.jsonl.part")
    assert len(names) == KEPT
    assert "old005.jsonl" not in names and "old104.jsonl" in names


def test_a_recording_that_cannot_be_written_is_told_and_leaves_nothing(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch  # type: ignore[no-untyped-def]
) -> None:
    recording = Recording(str(tmp_path / "u.jsonl"), ["true"], SandboxPolicy())

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", full)
    recording.finish(Outcome(status=Status.OK, rc=0, reason=""), quiet=False)
    assert f"not recorded: {tmp_path}/u.jsonl: No space left on device" in capsys.readouterr().err
    recording.close()
    assert os.listdir(tmp_path) == []


_FORGES = {
    "the name that was given": "open('u.jsonl', 'w').write('forged')",
    "every name like it": "import glob\nfor each in glob.glob('*u.jsonl*') + glob.glob('.*u.jsonl*') + ['u.jsonl']:\n"
                          "  open(each, 'w').write('forged')",
    "a link to another file": "import os\nos.symlink('victim', 'u.jsonl')",
}  # fmt: skip


@pytest.mark.parametrize("isolation", ["strict", "process"])
@pytest.mark.parametrize("how", _FORGES)
def test_what_a_guest_makes_in_the_place_of_a_recording_is_told_and_never_taken_for_it(
    how: str, isolation: str, call, tmp_path: Path  # type: ignore[no-untyped-def]
) -> None:
    (tmp_path / "victim").write_text("precious")
    kept = ("--commit",) if isolation == "strict" else ()
    words = ("--isolation", isolation, *kept, "--usage-file", "u.jsonl", "--", sys.executable, "-c", _FORGES[how])
    done = call("run", *words)
    assert done.returncode == 0 and "made or changed by somebody else" in done.stderr
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "u.jsonl").is_symlink() or (tmp_path / "u.jsonl").read_text() == "forged"
    name = done.stderr.partition("see it: ringfence usage ")[2].split()[0]
    told = json.loads(call("usage", name, "--json").stdout)
    assert told["about"]["command"][0] == sys.executable and told["end"]["rc"] == 0


def test_while_a_run_goes_on_nothing_of_its_recording_lies_in_the_workspace(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = call("run", "--commit", "--usage-file", "u.jsonl", "--", "sh", "-c", "ls -A > seen")
    assert "recorded; see it" in done.stderr
    assert "u.jsonl" not in (tmp_path / "seen").read_text()
    assert usage_log.read(str(tmp_path / "u.jsonl")).end["rc"] == 0, "the control: it is there afterwards"


def test_a_folder_that_a_guest_exchanges_gets_no_recording(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "logs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    swap = "rm -r logs && ln -s elsewhere logs"
    done = call("run", "--commit", "--usage-file", "logs/u.jsonl", "--", "sh", "-c", swap)
    assert (tmp_path / "logs").is_symlink() and os.listdir(tmp_path / "elsewhere") == []
    assert "changed by somebody else" in done.stderr and "recorded; see it" in done.stderr


def test_the_graph_in_the_terminal_shows_when_it_was_busy(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = call("usage", str(_recorded(tmp_path / "u.jsonl")))
    title, cpu, memory, *_ = done.stdout.splitlines()
    assert title == "make test  ·  OK (rc 0)  ·  3.9 s"
    drawn = cpu.split("  at most")[0].removeprefix("  cpu       ")
    assert drawn[:30].strip() == "" and set(drawn[32:60]) == {"█"}
    assert memory.endswith("at most 39 MiB")


def test_the_pictures_show_the_curves(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = str(_recorded(tmp_path / "u.jsonl"))
    assert call("usage", path, "--svg", "u.svg").returncode == 0
    assert call("usage", path, "--png").stdout == "see usage-u.png\n"
    os.rename(tmp_path / "usage-u.png", tmp_path / "u.png")
    drawn = ElementTree.parse(tmp_path / "u.svg").getroot()
    texts = "".join(drawn.itertext())
    assert all(word in texts for word in ("make test", "cpu", "at most 100 %", "memory", "at most 39 MiB"))
    lines = [element for element in drawn.iter() if element.tag.endswith("polyline")]
    assert len(lines) == 2 and len(lines[0].attrib["points"].split()) == 40
    width, height, rows = _pixels((tmp_path / "u.png").read_bytes())
    assert (width, len(rows)) == (960, height)
    inked = [row for row in rows if bytes((194, 65, 12)) in row]
    assert len(inked) > 20


def _pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Each chunk is checked as a reader would."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    place, chunks = 8, {}
    while place < len(png):
        (length,) = struct.unpack_from("!I", png, place)
        kind, body = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        assert struct.unpack_from("!I", png, place + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        place += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *form = struct.unpack("!IIBBBBB", chunks[b"IHDR"])
    assert form == [8, 2, 0, 0, 0]
    data, step = zlib.decompress(chunks[b"IDAT"]), 1 + 3 * width
    assert len(data) == step * height and set(data[::step]) == {0}
    return width, height, [data[start + 1 : start + step] for start in range(0, len(data), step)]


NO_USAGE = {
    "empty": "", "no format": "{}\n", "a list": "[]\n", "not JSON": "not JSON\n", "zero": "\x00\n",
    "another format": '{"ringfence_usage": 2}\n', "half a sample": '{"ringfence_usage": 1}\n{"time_s": 1}\n',
    "too deep": '{"ringfence_usage": 1}\n' + "[" * 100_000 + "\n",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_USAGE)
def test_what_is_no_usage_file_is_refused_in_words(call, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "bad.jsonl").write_text(NO_USAGE[name])
    done = call("usage", "bad.jsonl")
    assert done.returncode == 2 and "bad.jsonl" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-1", "true", '"1"', "null", "1e400", str(2**70), "9" * 400],
                         ids=lambda text: text[:9])  # fmt: skip
def test_a_figure_that_nothing_can_measure_is_refused_by_its_line(tmp_path: Path, wrong: str) -> None:
    path = _recorded(tmp_path / "u.jsonl", samples=2)
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"memory_bytes": 1048576', f'"memory_bytes": {wrong}')
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"u\.jsonl:3"):
        usage_log.read(str(path))


def test_reading_ends_at_the_first_line_that_is_wrong(tmp_path: Path) -> None:
    """A file of millions of lines is refused before it has become millions of objects."""
    path = tmp_path / "u.jsonl"
    path.write_text("{}\n{\n")
    with pytest.raises(UsageError, match="not a usage file"):
        usage_log.read(str(path))
    path.write_text(json.dumps({"ringfence_usage": 1}) + "\n{}\n{}\n{\n")
    with pytest.raises(UsageError, match=":2: not a sample"):
        usage_log.read(str(path))


def test_a_recording_that_was_broken_off_can_be_read(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "u.jsonl")
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    found = usage_log.read(str(path))
    assert len(found.samples) == 40 and found.end == {}


def test_a_long_run_is_written_more_and_more_sparsely(tmp_path: Path) -> None:
    samples = 20 * DENSE_LINES
    found = usage_log.read(str(_recorded(tmp_path / "u.jsonl", samples)))
    assert 4 * DENSE_LINES < len(found.samples) < 5 * DENSE_LINES
    assert found.samples[0].time_s == 0.0 and found.samples[-1].time_s > samples / 10 * 0.99


def test_an_id_that_nobody_has_or_many_have_is_told(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert "no run was recorded" in call("usage", "abcd").stderr
    folder = tmp_path / "state" / "ringfence" / "usage"
    folder.mkdir(parents=True)
    for name in ("ab1", "ab2"):
        _recorded(folder / f"{name}.jsonl", samples=1)
    done = call("usage", "ab")
    assert done.returncode == 2 and "ab1" in done.stderr and "ab2" in done.stderr
    assert call("usage", "ab2").returncode == 0


def test_a_graph_has_a_character_for_each_height() -> None:
    assert graph([0, 1, 4, 8], 10) == " ▁▄█"
    assert graph([0.001, 8], 10) == "▁█"
    assert graph([50], 10, top=100, characters=PLAIN) == "="
    assert graph([0, 0], 10) == "  " and graph([], 10) == ""
    assert squeezed([1, 9, 2, 3], 2) == [9, 3]
