"""Results that a service has promised: where they lie, and what becomes of those that are large or have no room."""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.service_server import QUICK, ask, running, settings, token_file

from ringfence.service import json_text as json_texts
from ringfence.service import runs, store
from ringfence.service.settings import NamedPolicy

if sys.platform != "linux":
    pytest.skip("needs isolation strict", allow_module_level=True)

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]


def test_results_of_an_earlier_life_are_listed_and_can_be_removed(tmp_path: Path) -> None:
    path, tokens = token_file(tmp_path, {"name": "one"}, {"name": "two"},
                              {"name": "boss", "scopes": ["read", "operator"]})  # fmt: skip
    given = settings(tmp_path, tokens=path)
    one = functools.partial(ask, token=tokens["one"])
    with running(given) as here:
        tricky = {"argv": ["printf", 'a,"outcome":', '"outcome":'], "wait": False}
        made = [one(here.port, "POST", "/v1/runs", tricky)[2]["id"] for _ in range(3)]
        for each in made:
            assert one(here.port, "GET", f"/v1/runs/{each}?wait=true")[2]["state"] == "ended"
        before = one(here.port, "GET", "/v1/runs")[2]["runs"]
    with running(given) as here:
        again = one(here.port, "GET", "/v1/runs")[2]["runs"]
        assert again == sorted(before, key=lambda each: each["id"], reverse=True) and len(again) == 3
        fresh = one(here.port, "POST", "/v1/runs", {"argv": ["true"]})[2]["id"]
        newest = one(here.port, "GET", "/v1/runs?most=2")[2]["runs"]
        assert [each["id"] for each in newest] == [fresh, max(made)]
        assert ask(here.port, "GET", "/v1/runs", token=tokens["two"])[2]["runs"] == []
        assert len(ask(here.port, "GET", "/v1/runs", token=tokens["boss"])[2]["runs"]) == 4
        assert ask(here.port, "DELETE", f"/v1/runs/{made[0]}", token=tokens["two"])[0] == 404
        assert [one(here.port, "DELETE", f"/v1/runs/{made[0]}")[0] for _ in range(2)] == [204, 404]
        assert one(here.port, "GET", f"/v1/runs/{made[0]}")[0] == 404
        assert {each["id"] for each in one(here.port, "GET", "/v1/runs")[2]["runs"]} == {fresh, *made[1:]}
    assert not (tmp_path / "state" / "runs" / f"{made[0]}.json").exists()


class FullDisk:
    """Takes everything but results."""

    def __init__(self) -> None:
        self.is_full, self.refused = True, 0
        self._write = store.write_whole

    def __call__(self, path: str, data: bytes) -> None:
        if self.is_full and b'"state":"ended"' in data:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullDisk]:
    made = FullDisk()
    monkeypatch.setattr(store, "write_whole", made)
    yield made
    made.is_full = False


def _promised(port: int) -> str:
    run: str = ask(port, "POST", "/v1/runs", {"argv": ["echo", "mine"], "wait": False})[2]["id"]
    assert ask(port, "GET", f"/v1/runs/{run}?wait=true")[2]["outcome"]["stdout"] == "mine\n"
    return run


def _on_disk(folder: Path, run: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "state" / "runs" / f"{run}.json").read_text())
    return found


@pytest.mark.parametrize("idle_s", [0.1, 3600.0], ids=("while it lives", "at its end"))
def test_a_result_is_written_once_the_disk_has_room(tmp_path: Path, disk: FullDisk, idle_s: float) -> None:
    """The service sweeps ten times in a second, or not before the end of the test."""
    with running(settings(tmp_path, idle_s=idle_s)) as here:
        run = _promised(here.port)
        assert disk.refused and _on_disk(tmp_path, run)["state"] == "running"
        disk.is_full = False
        if idle_s < 1:
            eventually(lambda: _on_disk(tmp_path, run)["state"] == "ended")
    kept = _on_disk(tmp_path, run)
    assert kept["state"] == "ended" and kept["outcome"]["stdout"] == "mine\n"  # type: ignore[index]


def test_a_result_that_neither_disk_nor_memory_has_room_for_is_lost_with_its_status(
    tmp_path: Path, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_MOST_KEPT", 1)
    with running(settings(tmp_path)) as here:
        run = _promised(here.port)
        other = ask(here.port, "POST", "/v1/runs", {"argv": ["true"]})[2]["id"]
        eventually(lambda: ask(here.port, "GET", f"/v1/runs/{run}")[2]["state"] == "lost")
        told = ask(here.port, "GET", f"/v1/runs/{run}")[2]
        assert (told["status"], told["rc"], told["outcome"]) == ("OK", 0, None)
        assert "no room on the disk" in told["error"]["message"]
        assert ask(here.port, "DELETE", f"/v1/runs/{run}")[0] == 204
        assert ask(here.port, "GET", f"/v1/runs/{other}")[2]["state"] == "ended"
    assert not os.listdir(tmp_path / "state" / "runs")


def test_the_loop_that_serves_everybody_encodes_no_large_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: dict[str, int] = {}
    encode = json_texts._encode

    def measured(value: object) -> str:
        text = encode(value)
        name = threading.current_thread().name
        longest[name] = max(longest.get(name, 0), len(text))
        return text

    monkeypatch.setattr(json_texts, "_encode", measured)
    large = NamedPolicy(name="default", policy=QUICK.with_changes(output_bytes=8 << 20))
    printed = "x" * (4 << 20)
    for wait in (True, False):
        with running(settings(tmp_path, policies={"default": large})) as here:
            body = {"argv": ["python3", "-c", "print('x' * (4 << 20), end='')"], "wait": wait}
            run = ask(here.port, "POST", "/v1/runs", body)[2]["id"]
            assert ask(here.port, "GET", f"/v1/runs/{run}?wait=true")[2]["outcome"]["stdout"] == printed
    with running(settings(tmp_path, policies={"default": large})) as here:
        assert ask(here.port, "GET", f"/v1/runs/{run}")[2]["outcome"]["stdout"] == printed, "from the disk"
    assert max(longest.values()) <= json_texts.STEP_CHARS + 2, longest
