"""A real browser for the tests: Debian's Chromium, installed when it is missing, driven by Playwright.

Does not skip: a page that was not seen in a browser was not tested.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests import packages

# The machine's network may be closed, and nothing of this is about the browser's own services.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Records what the page's own policy refused; runs before anything of the page does.
WATCH = """
window.refused = [];
document.addEventListener('securitypolicyviolation', (event) => window.refused.push(event.violatedDirective));
"""


def executable() -> str:
    return shutil.which("chromium-browser") or packages.program("chromium")


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()


@dataclass
class Watched:
    """A page and all that it asked for or complained about."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def refused(self) -> list[str]:
        return list(self.page.evaluate("window.refused"))

    def strange_requests(self) -> list[str]:
        """All but the page itself and its own worker, which is a piece of its memory."""
        return [url for url in self.requests if url != self.address and not url.startswith("blob:")]


@contextmanager
def watched_page(running: Any, address: str, **options: Any) -> Iterator[Watched]:
    context = running.new_context(**options)
    try:
        watched = Watched(page=context.new_page(), address=address)
        context.on("request", lambda request: watched.requests.append(request.url))
        context.on("console", lambda message: watched.complaints.append(message.text))
        context.on("weberror", lambda error: watched.complaints.append(str(error.error)))
        context.add_init_script(WATCH)
        watched.page.goto(address)
        yield watched
    finally:
        context.close()
