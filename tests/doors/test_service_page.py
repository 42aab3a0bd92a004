"""The live page in a real browser: what a person sees and does there, and what a hostile sandbox can't make it do."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import chromium
import pytest
from tests.patience import PATIENCE_S
from tests.service_server import QUICK, Here, running, settings, token_file

from ringfence.client import Client
from ringfence.errors import SandboxError
from ringfence.service.settings import NamedPolicy

pytestmark = [pytest.mark.unmeasured, pytest.mark.once]
PATIENCE_MS = 2 * PATIENCE_S * 1000
SHOTS = os.environ.get("RINGFENCE_SHOTS", "")
"""A directory for pictures, for a person to look at."""
EVIL = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script><svg onload=window.hacked=3>"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "shown").mkdir()
    (folder / "shown" / "answer").write_text("42")
    return folder


@pytest.fixture(scope="module")
def here(place: Path) -> Iterator[Here]:
    shown = place / "shown"
    watched = QUICK.with_changes(readable_paths=(str(shown),), hidden_paths=(str(shown / "answer"),))
    policies = {"default": NamedPolicy(name="default", policy=QUICK, warm=1),
                "watched": NamedPolicy(name="watched", policy=watched)}  # fmt: skip
    with running(settings(place, policies=policies)) as found:
        yield found


@pytest.fixture(scope="module")
def running_browser() -> Iterator[Any]:
    with chromium.browser() as found:
        yield found


@pytest.fixture(scope="module")
def client(here: Here, place: Path) -> Iterator[Client]:
    with Client(here.address, token="") as made:
        yield made


@pytest.fixture(scope="module")
def lived_in(client: Client, place: Path) -> Iterator[str]:
    """Something of everything, as a hostile program would have it."""
    box = client.open()
    box.put("notes.txt", b"first line\nsecond line\n")
    box.put("evil.html", EVIL.encode())
    box.run(["sh", "-c", "mkdir src; echo 'print(1)' > src/main.py; touch \"$1\"", "sh", EVIL.replace("/", "-")])
    busy = box.start(["sh", "-c", "i=0; while :; do i=$((i+1)); done"])
    client.run(["sh", "-c", f"printf '%s\\n' '{EVIL}'; echo warning >&2; printf '\\033[2Jgone\\n'"], bundle=True)
    client.run(["cat", f"{place}/shown/answer"], "watched")
    client.run(["sh", "-c", "exit 3"])
    client.run(["echo", EVIL])
    yield box.id
    with suppress(SandboxError):  # under load its time may be over by now
        busy.signal(9)
    busy.join(PATIENCE_S)
    box.close()


@pytest.fixture
def seen(running_browser: Any, here: Here, lived_in: str) -> Iterator[chromium.Watched]:
    """The page; whatever a test did, it asked nobody else, ran nothing of a sandbox, and broke no rule of its own."""
    with chromium.watched_page(running_browser, f"{here.address}/", viewport={"width": 1360, "height": 860}) as watched:
        watched.page.wait_for_selector("#runs .item", timeout=PATIENCE_MS)
        yield watched
        assert [url for url in watched.requests if not url.startswith((f"{here.address}/", "data:"))] == []
        assert watched.page.evaluate("window.hacked") is None
        assert watched.refused() == []
        assert [each for each in watched.complaints if "404" not in each] == []


def _shot(seen: chromium.Watched, name: str) -> None:
    if SHOTS:
        seen.page.screenshot(path=os.path.join(SHOTS, f"{name}.png"))


def _pick(seen: chromium.Watched, words: str) -> Any:
    page = seen.page
    page.click(f"#runs .item:has-text({words!r})")
    return page


def _text(page: Any, selector: str, words: str) -> str:
    page.wait_for_function("([where, words]) => (document.querySelector(where)?.textContent || '').includes(words)",
                           arg=[selector, words], timeout=PATIENCE_MS)  # fmt: skip
    return str(page.text_content(selector))


def test_what_happens_is_shown_as_it_happens(seen: chromium.Watched, client: Client) -> None:
    page = seen.page
    assert _text(page, "#state", "live") == "live"
    assert "sandboxes" in _text(page, "#meters", "memory")
    assert "answer" in _text(page, "#attempts", "answer")
    page.wait_for_function("document.querySelector('#boxes svg .cpu').getAttribute('points').split(' ').length > 2",
                           timeout=PATIENCE_MS)  # fmt: skip
    client.run(["echo", "fresh from a client"])
    _text(page, "#runs", "fresh from a client")
    _shot(seen, "overview")


def test_a_run_shows_output_protections_and_the_verdict_on_its_evidence(seen: chromium.Watched) -> None:
    page = _pick(seen, "warning")
    said = _text(page, "#panel", "warning")
    assert EVIL in said and "\\u001b[2Jgone" in said
    _shot(seen, "output")
    _text(page, "#dfacts", "peak memory")
    page.keyboard.press("2")
    assert "memory" in _text(page, "#panel", "wall_time")
    assert "peak memory" in str(page.text_content("#dfacts")), "what is known of a run stays"
    _shot(seen, "protections")
    page.keyboard.press("3")
    assert "The bundle holds" in _text(page, "#panel", "The bundle holds")
    _shot(seen, "evidence")


def test_a_box_shows_its_diff_and_files(seen: chromium.Watched) -> None:
    page = seen.page
    page.click("#boxes .item")
    assert "+second line" in _text(page, "#panel", "+second line")
    _shot(seen, "diff")
    page.keyboard.press("2")
    _text(page, "#panel", "src/")
    _shot(seen, "files")
    page.click("#panel button:has-text('evil.html')")
    assert EVIL in _text(page, "#panel pre", EVIL)
    page.keyboard.press("3")
    _text(page, "#panel", "while")


def test_the_keyboard_is_enough(seen: chromium.Watched) -> None:
    page = seen.page
    page.keyboard.press("j")
    first = page.evaluate("document.activeElement.parentElement.dataset.key")
    page.keyboard.press("j")
    second = page.evaluate("document.activeElement.parentElement.dataset.key")
    assert first and second and first != second
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.parentElement.dataset.key") == first
    page.keyboard.press("?")
    assert page.is_visible("#keys") and "1–3" in str(page.text_content("#keys")), "as many as there are tabs"
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys")


def test_dark_and_light(seen: chromium.Watched) -> None:
    page = seen.page
    grounds = []
    for _ in range(2):
        page.keyboard.press("t")
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        _shot(seen, f"theme-{len(grounds)}")
    assert grounds[0] != grounds[1]
    page.click("#boxes .item")
    page.keyboard.press("t")
    _text(page, "#panel", "+second line")
    _shot(seen, "dark-diff")


def test_a_run_is_ended_by_hand(seen: chromium.Watched, client: Client) -> None:
    begun = client.connection.json("POST", "/v1/runs", {"argv": ["sleep", "599"], "wait": False})
    page = seen.page
    _text(page, "#runs", "sleep 599")
    _pick(seen, "sleep 599").click("button.danger")
    assert client.connection.json("GET", f"/v1/runs/{begun['id']}", query={"wait": "true"})["status"] == "KILLED_KILL"
    _text(page, "#dhead", "KILLED_KILL")


def test_a_small_window_shows_all(running_browser: Any, here: Here, lived_in: str) -> None:
    with chromium.watched_page(running_browser, f"{here.address}/", viewport={"width": 420, "height": 800}) as watched:
        watched.page.wait_for_selector("#runs .item", timeout=PATIENCE_MS)
        assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        _shot(watched, "small")


def test_the_control_a_page_that_trusts_output_is_hacked(running_browser: Any, here: Here, lived_in: str) -> None:
    """The same text put in as markup, in a page without our rules, runs: so the text is a real attack."""
    with chromium.watched_page(running_browser, "about:blank") as watched:
        watched.page.evaluate("text => { document.body.innerHTML = text; }", EVIL)
        watched.page.wait_for_function("window.hacked !== undefined", timeout=PATIENCE_MS)
    # In our page the browser itself refuses it, should a line of ours ever try.
    with chromium.watched_page(running_browser, f"{here.address}/") as watched:
        with pytest.raises(Exception, match="TrustedHTML"):
            watched.page.evaluate("text => { document.body.innerHTML = text; }", EVIL)
        assert watched.page.evaluate("window.hacked") is None


def test_a_token_is_asked_for_and_kept_for_the_tab_alone(running_browser: Any, tmp_path: Path) -> None:
    path, tokens = token_file(tmp_path, {"name": "person"})
    with (
        running(settings(tmp_path, tokens=path)) as here,
        chromium.watched_page(running_browser, f"{here.address}/") as watched,
    ):
        page = watched.page
        page.wait_for_selector("#login[open]", timeout=PATIENCE_MS)
        _shot(watched, "login")
        page.fill("#token", tokens["person"])
        page.keyboard.press("Enter")
        assert _text(page, "#tenant", "person") == "person"
        assert page.evaluate("localStorage.length") == 0
        assert tokens["person"] not in page.content()


def test_a_page_of_another_origin_gets_nothing(running_browser: Any, here: Here, tmp_path: Path) -> None:
    """What a browser lets another page try: fetch, a form, a frame, a picture; and a name that leads here."""
    (tmp_path / "index.html").write_text("<h1>elsewhere</h1>")
    handler = lambda *given: http.server.SimpleHTTPRequestHandler(*given, directory=str(tmp_path))  # noqa: E731
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        before = here.service.figures.of("ringfence_service_requests_total", "create_run", "200")
        with chromium.watched_page(running_browser, f"http://127.0.0.1:{other.server_port}/") as watched:
            tried = watched.page.evaluate(
                """async (address) => {
                  const results = [];
                  for (const type of ["application/json", "text/plain"]) {
                    const options = {method: "POST", mode: type === "text/plain" ? "no-cors" : "cors",
                                     headers: {"content-type": type}, body: JSON.stringify({argv: ["true"]})};
                    try { results.push((await fetch(`${address}/v1/runs`, options)).status); }
                    catch { results.push("refused"); }
                  }
                  return results;
                }""", here.address)  # fmt: skip
            assert tried == ["refused", "refused"]
        other.shutdown()
        assert here.service.figures.of("ringfence_service_requests_total", "create_run", "200") == before
        assert here.service.figures.of("ringfence_service_requests_total", "create_run", "403") >= 1
