"""The verifying page as a person meets it, in a real browser: what it says, withstands and never does."""

from __future__ import annotations

import copy
import http.server
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "unit", "evidence"))
import chromium
import evidence_samples as s
from hostile_bundle import GARBAGE, HTML, PAYLOAD, hostile_bundle
from test_evidence_verify import INDEX, VECTORS, verify_entry

from ringfence.cli import COMMANDS, dispatch
from ringfence.errors import VerificationError
from ringfence.evidence import bundle as maker
from ringfence.evidence.page import verify_page
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle

pytestmark = pytest.mark.unmeasured

DONE = "#result:not([data-state=busy]):not([data-state=empty])"
GOOD = os.path.join(VECTORS, "good-ringfence-3-plain.json")
FULL = os.path.join(VECTORS, "good-ringfence-3.json")
PUBKEY = s.OPERATOR.public_hex


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with chromium.browser() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "verify.html"
    path.write_bytes(verify_page().encode())
    return path.as_uri()


@pytest.fixture
def seen(running: Any, address: str) -> Iterator[chromium.Watched]:
    """A fresh page; whatever the test did, it asked for nothing and its policy had nothing to refuse."""
    with chromium.watched_page(running, address) as watched:
        yield watched
        assert watched.strange_requests() == []
        assert watched.complaints == []
        assert watched.refused() == []


@pytest.fixture(scope="module")
def reused(running: Any, address: str) -> Iterator[chromium.Watched]:
    """One page for all vectors, reloaded for each."""
    with chromium.watched_page(running, address) as watched:
        yield watched
        assert watched.strange_requests() == []
        assert watched.complaints == []


def ask(page: Any, bundle: str, **options: Any) -> tuple[str, int]:
    """Fill the page in as a person would, and wait for its answer: the state and the failed step."""
    if "pubkey" in options:
        page.fill("#key", options["pubkey"])
    if {"trust", "nonce", "artifacts", "allow_missing_environment"} & set(options):
        page.click(".options > summary")
    if "trust" in options:
        data = {"name": "trust.json", "mimeType": "application/json", "buffer": s.encoded(options["trust"])}
        page.set_input_files("#trust", data)
    if "nonce" in options:
        page.fill("#nonce", options["nonce"])
    if "artifacts" in options:
        page.set_input_files("#folder", os.path.join(VECTORS, options["artifacts"]))
    if options.get("allow_missing_environment"):
        page.check("#missing")
    page.set_input_files("#bundle", bundle)
    return answer(page)


def answer(page: Any) -> tuple[str, int]:
    result = page.wait_for_selector(DONE, timeout=60_000)
    return result.get_attribute("data-state"), int(result.get_attribute("data-step"))


def told_by_python(entry: dict[str, Any]) -> tuple[str, int, list[str]]:
    try:
        return "ok", 0, list(verify_entry(entry).notes)
    except VerificationError as error:
        return "failed", error.step, [comparable(str(error))]


def comparable(text: str) -> str:
    """Where JSON breaks off is told in the words of each reader."""
    return re.sub(r"(not JSON|not UTF-8).*", r"\1", text)


def one_of_each_step_and_all_good_ones() -> list[dict[str, Any]]:
    """What a person does with the page; all vectors go through its verifier in test_verify_page_parity."""
    first = {entry["step"]: entry for entry in reversed(INDEX) if entry["step"]}
    return [*(entry for entry in INDEX if not entry["step"]), *first.values()]


@pytest.mark.parametrize("entry", one_of_each_step_and_all_good_ones(), ids=lambda entry: entry["file"])
def test_a_vector_gives_the_state_step_and_words_of_python(reused: chromium.Watched, entry: dict[str, Any]) -> None:
    page = reused.page
    page.reload()
    options = {name: value for name, value in entry.items() if name not in ("file", "step")}
    state, step = ask(page, os.path.join(VECTORS, entry["file"]), **options)
    told = page.locator(".reason, .notes li").all_inner_texts()
    assert (state, step, [comparable(text) for text in told]) == told_by_python(entry)
    assert reused.refused() == []


def test_a_pinned_bundle_shows_verdict_signer_timeline_and_inputs(seen: chromium.Watched) -> None:
    assert ask(seen.page, GOOD, pubkey=PUBKEY) == ("ok", 0)
    text = seen.page.inner_text("#report")
    for expected in ("Verified", "Passed", "Compromised", PUBKEY, "/oracle/änswer.txt", "192.0.2.7:443", "AGENTS.md"):
        assert expected in text
    assert seen.page.locator(".timeline li").count() == 2
    assert seen.page.locator(".proven li").count() >= 5 and seen.page.locator(".unproven li").count() >= 5


def test_steps_that_do_not_apply_are_not_counted_as_failures(seen: chromium.Watched) -> None:
    assert ask(seen.page, GOOD, pubkey=PUBKEY)[0] == "ok"
    (told,) = [text for text in seen.page.locator(".count").all_inner_texts() if " hold" in text]
    counted = re.fullmatch(r"(\d+) of (\d+) hold, (\d+) do not apply", told)
    assert counted, told
    assert counted[1] == counted[2] and int(counted[3]) > 0


def test_a_run_without_a_grader_is_shown_as_not_graded(seen: chromium.Watched) -> None:
    assert ask(seen.page, os.path.join(VECTORS, "good-ringfence-run-1-unsure.json"), pubkey=PUBKEY) == ("ok", 0)
    text = seen.page.inner_text("#report")
    for expected in ("it was not graded", "Run 018f-run", "the recorder was not sure", "nobody graded it"):
        assert expected in text
    assert "Passed" not in text and "Did not pass" not in text


DROP = """([name, text]) => { const carried = new DataTransfer();
  carried.items.add(new File([text], name));
  const options = { bubbles: true, cancelable: true, dataTransfer: carried };
  return document.body.dispatchEvent(new DragEvent('drop', options)) }"""


def test_a_bundle_may_be_dropped_anywhere_on_the_page(seen: chromium.Watched) -> None:
    went_on = seen.page.evaluate(DROP, ["dropped.json", Path(GOOD).read_text(encoding="utf-8")])
    assert went_on is False, "the browser itself would have opened the file"
    assert answer(seen.page) == ("intact", 0)
    assert "dropped.json" in seen.page.inner_text("#chosen")


def test_an_unpinned_bundle_is_intact_and_its_signer_unknown_until_a_key_is_given(seen: chromium.Watched) -> None:
    assert ask(seen.page, GOOD) == ("intact", 0)
    assert seen.page.inner_text("h2") == "Intact, signer unknown"
    assert "Verified" not in seen.page.inner_text("#report")
    seen.page.fill("#key", PUBKEY)
    seen.page.wait_for_selector("#result[data-state=ok]")
    seen.page.fill("#key", s.STRANGER.public_hex)
    seen.page.wait_for_selector("#result[data-state=failed][data-step='7']")


def test_a_refused_bundle_shows_nothing_of_what_it_claims(seen: chromium.Watched) -> None:
    bundle = os.path.join(VECTORS, "tampered", "06-signature-task.json")
    assert ask(seen.page, bundle, pubkey=PUBKEY) == ("failed", 6)
    text = seen.page.inner_text("#report")
    assert "buzz" not in text and "Passed" not in text and PUBKEY not in text


def test_a_key_may_be_pem_or_openssh_and_anything_else_is_told(seen: chromium.Watched) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(PUBKEY))
    pem = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo).decode()
    openssh = public.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()
    forms = {pem: "ok", openssh + " me@here": "ok", PUBKEY[:-1]: "unusable", PUBKEY.upper(): "unusable"}
    for key, state in forms.items():
        seen.page.reload()
        assert ask(seen.page, GOOD, pubkey=key)[0] == state, key
    assert "not a public key" in seen.page.inner_text(".reason")


def test_a_trust_file_that_is_none_is_told_and_proves_nothing(seen: chromium.Watched) -> None:
    assert ask(seen.page, GOOD, trust={"format": "ringfence-trust/1", "keys": []}) == ("unusable", 0)
    assert "nobody would be trusted" in seen.page.inner_text(".reason")


def test_a_stamp_that_the_page_cannot_read_counts_for_nothing(seen: chromium.Watched, tmp_path: Path) -> None:
    bundle = {**json.loads(Path(GOOD).read_bytes()), "anchors": [{"type": "rfc3161", "token": "AAAA"}]}
    path = tmp_path / "bundle.json"
    path.write_bytes(s.encoded(bundle))
    assert ask(seen.page, str(path), pubkey=PUBKEY) == ("ok", 0)
    assert "anchor rfc3161: not checked" in seen.page.inner_text(".notes")
    seen.page.reload()
    trust = s.trust_document(required_roles=[], required_anchors=["rfc3161"])
    assert ask(seen.page, str(path), trust=trust) == ("failed", 20)


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_at_step_one(seen: chromium.Watched, tmp_path: Path, name: str) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(GARBAGE[name])
    with pytest.raises(VerificationError) as caught:
        verify_bundle(GARBAGE[name], trust=Trust.unsafe_any_signer())
    assert ask(seen.page, str(path)) == ("failed", caught.value.step) == ("failed", 1)
    assert comparable(seen.page.inner_text(".reason")) == comparable(str(caught.value))


def untouched(page: Any) -> bool:
    """Nothing of a bundle became part of the page other than as text."""
    made = page.evaluate("document.querySelectorAll('img, #report script, #report [onerror]').length")
    return made == 0 and not page.evaluate("'pwned' in window")


def test_html_in_every_text_of_a_bundle_stays_text(seen: chromium.Watched, tmp_path: Path) -> None:
    path = tmp_path / f"{HTML}.json"
    path.write_bytes(s.encoded(hostile_bundle()))
    key = {**s.trust_document()["keys"][0], "name": PAYLOAD, "roles": [PAYLOAD]}
    trust = s.trust_document(keys=[key], required_roles=[], required_anchors=[])
    assert ask(seen.page, str(path), trust=trust) == ("ok", 0)
    seen.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
    text = seen.page.inner_text("body")
    assert text.count(HTML) >= 35
    assert "\u202e" not in text and "\\u202e" in text
    assert untouched(seen.page)


def test_html_in_what_is_refused_stays_text(seen: chromium.Watched, tmp_path: Path) -> None:
    good = json.loads(Path(GOOD).read_bytes())
    refused = {
        "maker": s.resigned(copy.deepcopy(good), proctor_version=PAYLOAD),
        "member": {**good, PAYLOAD: 1},
        "key": {**good, "contents": {**good["contents"], PAYLOAD: PAYLOAD}},
    }
    written = {name: s.encoded(bundle) for name, bundle in refused.items()}
    once = s.encoded({PAYLOAD: 1})
    written["twice"] = once[:-1] + b"," + once[1:]
    for name, data in written.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(data)
        seen.page.reload()
        assert ask(seen.page, str(path))[0] == "failed"
        assert "pwned" in seen.page.inner_text(".reason"), name
        assert untouched(seen.page)


def test_the_same_html_bites_where_text_is_not_kept_as_text(running: Any) -> None:
    """The positive control of the two tests above."""
    context = running.new_context()
    try:
        page = context.new_page()
        page.set_content(f"<body>{PAYLOAD}</body>")
        assert page.evaluate("'pwned' in window")
    finally:
        context.close()


class Listener(http.server.BaseHTTPRequestHandler):
    heard: list[str]

    def do_GET(self) -> None:
        self.heard.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    heard: list[str] = []
    handler = type("Handler", (Listener,), {"heard": heard})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    thread.join()
    server.server_close()


SEND = """async (to) => {
  new Image().src = to + '/image';
  navigator.sendBeacon(to + '/beacon');
  const source = `fetch('${to}/worker').catch(() => 0).finally(() => postMessage(1))`;
  const url = URL.createObjectURL(new Blob([source]));
  const worker = new Worker(page.policy.createScriptURL(url));
  await new Promise((done) => { worker.onmessage = worker.onerror = done });
  await fetch(to + '/fetch').catch(() => 0);
}"""


@pytest.mark.parametrize("guarded", [True, False])
def test_even_code_in_the_page_reaches_no_network(
    running: Any, tmp_path: Path, listener: tuple[str, list[str]], guarded: bool
) -> None:
    """Run inside the page: with the page's policy nothing arrives, without it everything does (the control)."""
    to, heard = listener
    html = verify_page()
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert bare != html
    path = tmp_path / "page.html"
    path.write_text(html if guarded else bare, encoding="utf-8")
    with chromium.watched_page(running, path.as_uri()) as watched:
        watched.page.evaluate(SEND, to)
        watched.page.wait_for_timeout(300)
        assert bool(watched.refused()) is guarded
    assert set(heard) == (set() if guarded else {"/image", "/worker", "/fetch"} | ({"/beacon"} & set(heard)))


def test_a_page_with_a_changed_script_does_not_run(running: Any, tmp_path: Path) -> None:
    html = verify_page()
    changed = html.replace("does not follow from the one before it", "is quite all right, trust us", 1)
    assert changed != html
    path = tmp_path / "page.html"
    path.write_text(changed, encoding="utf-8")
    with chromium.watched_page(running, path.as_uri()) as watched:
        watched.page.set_input_files("#bundle", GOOD)
        assert watched.page.get_attribute("#result", "data-state") == "empty"
        assert any("script-src" in directive for directive in watched.refused())


def large_bundle() -> bytes:
    records = [
        {"step": n, "kind": "masked_read", "path": f"/oracle/{n:06d}/" + "x" * 2000, "pid": 7, "syscall": "openat"}
        for n in range(25_000)
    ]
    with mock.patch.object(maker, "verify_bundle"):  # the page will do that
        return s.encoded(s.ringfence_bundle(violations=records))


TICK = "() => { window.ticks = 0; window.ticker = setInterval(() => { ticks += 1 }, 20) }"
TICKS_ON_THE_PAGE = """async () => { const file = document.getElementById('bundle').files[0];
  const bytes = new Uint8Array(await file.arrayBuffer());
  const before = ticks; parseStrictJson(bytes); return ticks - before }"""


@pytest.mark.long
def test_a_bundle_of_50_megabytes_is_verified_while_the_page_stays_alive(
    seen: chromium.Watched, tmp_path: Path
) -> None:
    path = tmp_path / "bundle.json"
    path.write_bytes(large_bundle())
    assert path.stat().st_size > 50_000_000
    page = seen.page
    page.evaluate(TICK)
    assert ask(page, str(path)) == ("intact", 0)
    assert page.evaluate("ticks") > 20
    assert page.evaluate(TICKS_ON_THE_PAGE) == 0  # the control: step 1 alone, outside the worker, stops the clock
    assert page.locator(".timeline li").count() == 200
    page.click(".more >> visible=true")
    page.wait_for_selector(".timeline li:nth-child(1200)")
    assert "23,800 left" in page.inner_text(".more >> visible=true")


def test_the_page_is_usable_by_keyboard(seen: chromium.Watched) -> None:
    reached = []
    for _ in range(3):
        seen.page.keyboard.press("Tab")
        reached.append(seen.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached == ["bundle", "key", "SUMMARY"]
    seen.page.keyboard.press("Enter")
    assert seen.page.is_visible("#trust")


def test_nothing_is_cut_off_on_a_phone(running: Any, address: str) -> None:
    with chromium.watched_page(running, address, viewport={"width": 360, "height": 740}) as watched:
        assert ask(watched.page, FULL, pubkey=PUBKEY) == ("ok", 0)
        watched.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_command_prints_the_page_and_writes_it(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    assert dispatch("ringfence", COMMANDS, ["verify-page"]) == 0
    assert capfdbinary.readouterr().out == verify_page().encode()
    assert dispatch("ringfence", COMMANDS, ["verify-page", "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == verify_page().encode()


def test_the_page_names_no_other_place() -> None:
    page = verify_page()
    assert set(re.findall(r"\w+://[^\s\"'`)]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", page)
