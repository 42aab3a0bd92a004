"""Parts of the service that need no sandbox: shapes, events, stored results, what is sent and read back."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ringfence import errors
from ringfence.cli import main, serve
from ringfence.client.wire import from_bytes, plain_error, read_error, to_bytes
from ringfence.errors import ConflictError, PolicyError, SandboxError, SetupError, UsageError
from ringfence.model.events import Event, EventKind
from ringfence.model.record import field_names
from ringfence.service import json_text as json_texts
from ringfence.service.event_log import EventLog, Feed
from ringfence.service.figures import COUNTERS, Figures
from ringfence.service.run import is_attempt
from ringfence.service.schema import told
from ringfence.service.settings import Settings, from_plain
from ringfence.service.shapes import RUN
from ringfence.service.store import ID, Store, new_id
from ringfence.service.tokens import add_token, read_tokens


@given(st.binary())
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    assert to_bytes(from_bytes(data)) == data


NO_BYTES = [None, 3, [], {}, {"base64": 3}, {"base64": "?"}, {"base64": "eA==", "x": 1}, "\ud800"]


@pytest.mark.parametrize("value", NO_BYTES)
def test_what_is_no_bytes_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        to_bytes(value)


@pytest.mark.parametrize("error", [
    UsageError("a", hint="b"), SetupError("exec", "no", errno=2), ConflictError("c", paths=("x",)),
    PolicyError("mem_bytes", "too much", more=(PolicyError("x", "y"),)), SandboxError("plain"),
    errors.UnavailableError("u", missing=("m",), hint="h"), errors.VerificationError(3, "v"),
], ids=repr)  # fmt: skip
def test_errors_come_back_as_they_were(error: SandboxError) -> None:
    again = read_error(plain_error(error))
    assert type(again) is type(error) and str(error) in str(again) and again.hint == error.hint
    for name in ("step", "errno", "paths", "missing", "field"):
        assert getattr(again, name, None) == getattr(error, name, getattr(again, name, None))


def test_of_a_foreign_error_nothing_is_told_and_a_foreign_kind_is_none() -> None:
    assert "secret" not in str(plain_error(ValueError("secret")))
    for kind in ("os", "annotations", "SystemExit", "is_of_a_call", "", None):
        assert type(read_error({"type": kind, "message": "m"})) is SandboxError


def test_shapes_tell_what_is_wrong_and_where() -> None:
    assert told({"argv": ["a"]}, RUN) == ""
    assert told({"argv": ["a", 1]}, RUN) == "argv[1] is not of type string"
    assert told({"argv": []}, RUN) == "argv has fewer items than 1"
    assert told({"agrv": []}, RUN) == "agrv is unknown"
    assert told({"timeout": True}, RUN) == "timeout is not of type number"
    assert told({"input": 3}, RUN) == "input must be a string or base64"


def test_events_are_numbered_and_of_a_flood_the_newest_stay() -> None:
    log = EventLog(most_bytes=1000)
    for number in range(500):
        log.tell("output", "x" * 10 + str(number))
    kept, missed, ended = log.since(0)
    assert missed == 500 - len(kept) > 0 and not ended and kept[-1][0] == 500
    assert log.since(500) == ([], 0, False)
    assert log.since(10**9)[0] == kept, "a number of another life is none"
    log.tell("end", {}, last=True)
    log.tell("output", "after the end")
    assert log.since(500)[0] == [(501, "end", "{}")]


@pytest.mark.parametrize(("kind", "details", "is_one"), [
    (EventKind.VIOLATION, {"aim": "hidden", "path": "/answer"}, True),
    (EventKind.LIMIT, {"capability": "wall_time"}, True),
    (EventKind.EGRESS, {"aim": "outward", "path": "192.0.2.7:443"}, True),
    (EventKind.EGRESS, {"decision": "refused", "name": "evil.example"}, True),
    (EventKind.EGRESS, {"reason": "the gateway was lost"}, True),
    (EventKind.EGRESS, {"aim": "noted", "path": "unix /var/run/nscd/socket"}, False),
    (EventKind.EGRESS, {"decision": "allowed", "name": "api.example"}, False),
    (EventKind.EGRESS, {"decision": "ended", "name": "api.example"}, False),
    (EventKind.EXIT, {}, False),
])  # fmt: skip
def test_what_goes_on_as_it_may_is_no_attempt(kind: EventKind, details: dict[str, object], is_one: bool) -> None:
    assert is_attempt(Event(kind=kind, run_id="", time_s=0, details=details)) is is_one


def test_a_flood_of_one_tenants_attempts_pushes_out_nobody_elses() -> None:
    feed = Feed(most_bytes=10_000)
    for number in range(10):
        feed.tell("quiet", "attempt", number, 100)
    for number in range(5000):
        feed.tell("loud", "attempt", number, 100)
    assert [text for _, _, text in feed.since(0, "quiet")] == [str(number) for number in range(10)]
    loud = feed.since(0, "loud")
    assert len(loud) == 90 and loud[-1][2] == "4999", "of its own the newest stay"
    assert [each[0] for each in feed.since(0, None)] == [*range(1, 11), *range(4921, 5011)]
    assert feed.since(5009, None) == loud[-1:] and feed.since(0, "nobody") == []
    assert feed.since(10**9, "quiet") == feed.since(0, "quiet"), "a number of another life is none"


def test_who_follows_hears_what_comes_later_and_then_the_end() -> None:
    async def work() -> list[bytes]:
        log = EventLog()
        log.tell("a", 1)
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, lambda: loop.run_in_executor(None, log.tell, "b", "line\nend"))
        loop.call_later(0.02, lambda: log.tell("end", None, last=True))
        return b"".join([piece async for piece in log.follow(0)]).split(b"\n\n")[:-1]

    heard = [each + b"\n\n" for each in asyncio.run(work())]
    assert heard[0] == b"id: 1\nevent: a\ndata: 1\n\n"
    assert heard[-1].split(b"\n")[1] == b"event: end"
    assert all(each.count(b"\n") == 4 for each in heard), "no text of a sandbox makes a line of its own"


def test_results_are_files_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    store = Store(str(tmp_path / "state"), 3600)
    run = new_id()
    assert ID.fullmatch(run)
    store.write(run, {"id": run})
    assert store.read(run) == {"id": run} and [*store.all()] == [(run, {"id": run})]
    os.symlink("/etc/hostname", os.path.join(store.folder, f"{'a' * 24}.json"))
    for name in ("a" * 24, "../" + run, run + ".json", "", "b" * 24):
        assert store.read(name) is None
    os.utime(os.path.join(store.folder, f"{run}.json"), (1, 1))
    store.sweep()
    assert store.read(run) is None
    (tmp_path / "state" / "runs").chmod(0o777)
    with pytest.raises(UsageError):
        Store(str(tmp_path / "state"), 3600)


def _row(run: str, tenant: str, state: str = "ended", size: int = 0) -> dict[str, object]:
    return {"id": run, "tenant": tenant, "state": state, "text": "x" * size}


def test_results_of_one_tenant_are_bounded_on_disk_and_take_no_room_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    store = Store(str(tmp_path / "state"), 3600, most_bytes=100_000)
    other, waiting, *runs = (new_id() for _ in range(30))
    store.write(other, _row(other, "other", size=90_000))
    store.write(waiting, _row(waiting, "one", "running"))
    for run in runs:
        store.write(run, _row(run, "one", size=9_000))
    assert store.read(runs[0]) is None and store.read(runs[-1]) is not None, "the oldest go first"
    assert store.read(other) is not None and store.read(waiting) is not None, "never another's, nor what is to come"
    kept = sum(each.stat().st_size for each in (tmp_path / "state" / "runs").iterdir())
    assert kept < 100_000 + 91_000
    store.close()
    again = Store(str(tmp_path / "state"), 3600, most_bytes=50_000)  # another life counts what it finds
    assert len([*again.all()]) > 5
    again.close()
    assert len([*Store(str(tmp_path / "state"), 3600, most_bytes=50_000).all()]) < 8
    large = new_id()
    store.write(large, _row(large, "one", size=200_000))
    assert store.read(large) is not None, "the newest is what was promised last"
    for number in range(30):
        assert not store.is_full("one") and number < 25
        store.write(run := new_id(), _row(run, "one", "queued", size=9_000))
        if store.is_full("one"):
            break
    assert not store.is_full("other") and not store.is_full("nobody")


def test_a_run_that_lasts_longer_than_results_are_kept_keeps_its_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    store = Store(str(tmp_path / "state"), 60)
    living, over = new_id(), new_id()
    for run in (living, over):
        store.write(run, _row(run, "one", "running"))
        os.utime(os.path.join(store.folder, f"{run}.json"), (1, 1))
    store.sweep({living})
    assert store.read(living) is not None and store.read(over) is None
    store.sweep()  # the control
    assert store.read(living) is None


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
))  # fmt: skip
def test_json_in_short_steps_is_the_same(value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_texts, "STEP_CHARS", 3)
        patch.setattr(json_texts, "STEP_VALUES", 2)
        assert json.loads(json_texts.json_in_steps(value)) == json.loads(json_texts.json_text(value))


def test_no_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    encode = json_texts._encode

    def measured(value: object) -> str:
        text = encode(value)
        steps.append(len(text))
        return text

    monkeypatch.setattr(json_texts, "_encode", measured)
    value = {"a": ["x"] * 5000, "b": {"c": "y" * (1 << 20), "d": {"base64": "z" * (1 << 20)}}, "e": 1}
    text = json_texts.json_in_steps(value)
    assert json.loads(text) == value and max(steps) <= json_texts.STEP_CHARS + 2 and text.isascii()


def test_figures_are_as_prometheus_reads_them() -> None:
    figures = Figures()
    figures.add("ringfence_service_runs_total", 'po"licy\n', "OK")
    text = figures.text({"ringfence_service_queue": 3})
    assert 'ringfence_service_runs_total{policy="po\\"licy\\n",status="OK"} 1' in text
    assert "ringfence_service_queue 3\n" in text
    from prometheus_client.parser import text_string_to_metric_families

    found = {family.name for family in text_string_to_metric_families(text)}
    assert {name.removesuffix("_total") for name in COUNTERS} <= found


@pytest.mark.parametrize(("name", "taken", "refused"), [
    ("sandbox.example.org", ("sandbox.example.org", "sandbox.example.org:8700"), ("sandbox.example.org:1",)),
    ("Sandbox.example.org:443", ("sandbox.example.org", "sandbox.example.org:443"), ("sandbox.example.org:8700",)),
    ("sandbox.example.org:9000", ("sandbox.example.org:9000",), ("sandbox.example.org",)),
])  # fmt: skip
def test_a_name_of_the_service_is_what_a_proxy_before_it_passes_on(
    name: str, taken: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    """Host has no port where that is the protocol's own."""
    found = Settings(port=8700, names=(name,)).authorities
    assert found.issuperset(taken) and found.isdisjoint(refused)


def test_the_example_of_settings_has_the_defaults_that_its_page_says() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/service.md").read_text(encoding="utf-8")
    example = page.partition("## Settings")[2].partition("```yaml\n")[2].partition("```")[0]
    values = yaml.safe_load(example)
    names = list(values)
    shown = ["host", "port", *names[names.index("spare_bytes") : names.index("connections") + 1]]
    assert from_plain({name: values[name] for name in shown}) == Settings()
    assert set(names) == set(field_names(Settings))


@pytest.mark.skipif(sys.platform == "win32", reason="users have numbers")
def test_a_file_of_tokens_that_the_service_cannot_trust_or_read_says_whose_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "tokens.yaml")
    add_token(path, "ci", ("run",))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _refused)
        with pytest.raises(UsageError, match="Permission denied") as unread:
            read_tokens(path)
    assert f"user {os.geteuid()}" in unread.value.hint
    if os.geteuid() == 0:  # its files are trusted, whoever reads them
        os.chown(path, 4712, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(UsageError, match="writable by others: it belongs to user") as foreign:
        read_tokens(path)
    assert foreign.value.hint == f"chown 4711 {path}"


@pytest.mark.parametrize("text", ["", "\n", "# ours\n", "tokens:\n", "tokens: []\n", "# ours\ntokens: []  # none\n"])
def test_a_file_without_a_token_counts_as_a_new_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="has no token"):
        read_tokens(str(path))
    made = [add_token(str(path), name, ("run",)) for name in ("one", "two")]  # the control: the next one goes behind it
    found = [read_tokens(str(path)).tenant_of(f"Bearer {token}") for token in made]
    assert [each.name for each in found if each] == ["one", "two"]
    assert path.read_text().startswith("# ours\n" if "ours" in text else "tokens:\n")


@pytest.mark.parametrize("text", ["[]", "3", "tokens: 3", "tokens: {}", "others: []"])
def test_what_is_no_file_of_tokens_gets_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(PolicyError, match="must have one key, tokens"):
        add_token(str(path), "one", ("run",))
    assert path.read_text() == text


@pytest.mark.parametrize("value", [[], "", None, {}, ()])
def test_what_names_no_file_of_tokens_does_not_mean_that_none_is_needed(value: object) -> None:
    with pytest.raises(PolicyError, match="is not the path of a file of tokens"):
        from_plain({"tokens": value})
    if value != "":
        with pytest.raises(UsageError, match="is not the path of a file"):
            Settings(tokens=value).checked()  # type: ignore[arg-type]


def test_an_empty_name_of_a_file_of_tokens_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "_loaded", lambda: pytest.fail("it began"))
    assert main(["serve", "--tokens", ""]) == 2
    assert "--tokens: the name of the file is empty" in capsys.readouterr().err


def test_a_path_with_a_zero_byte_is_refused_with_its_place() -> None:
    assert from_plain({"state": "/srv/ringfence"}).state == "/srv/ringfence"  # the control
    for field in ("state", "tokens", "host"):
        with pytest.raises(PolicyError, match=f"{field}: .* is not a string"):
            from_plain({field: "a\0b"})


def _refused(*_: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_on_windows_the_service_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "os", SimpleNamespace(name="nt"))
    assert main(["serve", "--port", "70000"]) == 2
    assert "needs Linux or macOS" in capsys.readouterr().err
