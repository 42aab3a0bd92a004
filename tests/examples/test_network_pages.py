"""The examples of the pages about the network, and of those whose programs need one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import playwright
import pytest

from tests.doors.test_readme import commands
from tests.egress_world import API, World, offered
from tests.examples import filled, output_of, shell, written
from tests.examples.in_the_world import FILES, Place, world_in
from tests.packages import program as installed

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path]]:
    folder = tmp_path_factory.mktemp("world")
    with world_in(folder) as made:
        yield made, folder


@pytest.fixture
def place(world: tuple[World, Path], tmp_path: Path) -> Place:
    return Place(*world, tmp_path)


# ---- allow-one-host.md


def decisions(printed: str) -> list[tuple[str, str]]:
    """(decision, name) of each value of ``jq`` that comes from the gateway."""
    left, found = printed.strip(), []
    while left:
        value, end = json.JSONDecoder().raw_decode(left)
        found += [(value["decision"], value["name"])] if "decision" in value else []
        left = left[end:].lstrip()
    return found


def test_all_that_a_job_tried(place: Place) -> None:
    installed("jq")
    fetch, *_ = commands(written("docs/how-to/allow-one-host.md", "cat > fetch.py"))
    place.shell(fetch[0])
    text = written("docs/how-to/allow-one-host.md", "ringfence run --json")
    allowed = place.shell(filled(text, **{"…": "http://api.example.com/"}))
    assert decisions(allowed) == [("allowed", "api.example.com")]
    refused = place.shell(filled(text, **{"…": "http://evil.example.net/"}))
    assert set(decisions(refused)) == {("refused", "evil.example.net")}


CLIENT = """
import json, os, sys, urllib.error, urllib.request

def ask(path, method):
    request = urllib.request.Request("https://api.example.com" + path, b"" if method == "POST" else None, method=method)
    try:
        return json.load(urllib.request.urlopen(request, timeout=60))["headers"].get("x-api-key")
    except urllib.error.HTTPError as error:
        return error.code

asked = [ask(*words.split()) for words in sys.argv[1:] or ("/v1/messages GET", "/v1/messages POST")]
print(json.dumps([*asked, os.environ.get("MODEL_API_KEY")]))
"""
"""Prints which key the server got with each request, or why it got none; and which key the job itself sees."""


def test_a_key_that_the_job_never_sees(place: Place) -> None:
    (place.work / "policy.yaml").write_text(written("docs/how-to/allow-one-host.md", "network:"))
    (place.work / "client.py").write_text(CLIENT)
    text = filled(written("docs/how-to/allow-one-host.md", "export MODEL"), **{"…": "a-secret"})
    assert json.loads(place.shell(text)) == ["a-secret", "a-secret", None]
    other = place.shell(f"{text.rstrip()} '/v1/models GET' '/v1/models DELETE' '/v2 GET'").splitlines()
    assert json.loads(other[0]) == ["a-secret", 403, 403, None]


ANOTHER = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=another -keyout key.pem -out ~/corp.pem 2> said"


def test_an_authority_that_a_program_inside_is_shown(place: Place) -> None:
    """This system's store has the authority too: without the store only what is shown counts."""
    fetch, *_ = commands(written("docs/how-to/allow-one-host.md", "cat > fetch.py"))
    place.shell(fetch[0])
    text = written("docs/how-to/allow-one-host.md", "--readable ~/corp.pem")
    shutil.copy(place.authority, place.home / "corp.pem")
    assert place.shell(text) == "200\n"
    assert place.shell(filled(text, **{' --env SSL_CERT_FILE="$HOME/corp.pem"': ""})) == "200\n", "the system's store"
    alone = filled(text, **{"--env SSL_CERT_FILE": "--env SSL_CERT_DIR=/none --env SSL_CERT_FILE"})
    assert place.shell(alone) == "200\n"
    place.shell(ANOTHER)
    assert "CERTIFICATE_VERIFY_FAILED" in place.shell(alone)


# ---- docs/reference/policy.md


def test_a_policy_file(place: Place) -> None:
    """Each of its entries is reached, and what it sets holds inside."""
    (place.work / "policy.yaml").write_text(written("docs/reference/policy.md", "mem_bytes: 1G"))
    (place.work / "client.py").write_text(CLIENT)
    shown = place.shell("ringfence policy show policy.yaml").splitlines()
    assert {"wall_time_s: 120", "mem_bytes: 1073741824", "file_bytes: 104857600"} <= set(shown)
    run = "MODEL_API_KEY=a-secret TZ=Asia/Tokyo ringfence run --policy policy.yaml --"
    answer = place.shell(f"{run} python3 client.py '/v1/messages POST' '/v1/models GET' 2> refused")
    assert json.loads(answer) == ["a-secret", 403, None]
    script = "echo $PYTHONHASHSEED $TZ; for name in pypi eu.files; do curl -sS https://$name.example.org/; done"
    seed, *served = place.shell(f"{run} sh -ec '{script}'").splitlines()
    assert seed == "0 Asia/Tokyo" and "".join(served).count("GET / HTTP") == 2


# ---- run-pip-in-a-sandbox.md


INSTALLED = "python3 -c 'import sys; sys.path.insert(0, \"packages\"); import {0}; print({0}.WORD)'"
"""Prints a word of the package: the test's own, which has the name of the example's."""


def _kept(place: Place, told: str) -> None:
    """Review and keep what a run has written, with the two commands that the page names."""
    found = re.search(r"keep: ringfence commit (\S+),", told)
    assert found and not (place.work / "packages").exists(), told
    assert "packages/" in place.shell(f"ringfence diff {found[1]}")
    place.shell(f"ringfence commit {found[1]}")


def test_pip_reaches_the_index_and_nothing_else(place: Place) -> None:
    wheel = offered.wheel(place.home, "requests")
    offered.index(place.served, [wheel], FILES)
    text = written("docs/how-to/run-pip-in-a-sandbox.md", "ringfence run --wall 300 --network pypi.org")
    place.world.heard()
    told = place.shell(text)
    assert {(row[0], row[1]) for row in place.world.heard()} == {(API, 443)}
    _kept(place, told)
    assert place.shell(INSTALLED.format("requests")) == "installed\n"


def test_pip_reaches_an_index_at_a_private_address(place: Place) -> None:
    offered.index(place.served, [offered.wheel(place.home, "requests")])
    place.environment |= {"PIP_INDEX_URL": "http://evil.example.net/"}
    told = place.shell(written("docs/how-to/run-pip-in-a-sandbox.md", "ringfence run --wall 300 --network pypi.corp"))
    _kept(place, told)
    assert place.shell(INSTALLED.format("requests")) == "installed\n"


def test_pip_takes_a_directory_of_wheels(place: Place) -> None:
    offered.wheel(place.work / "wheels", "some-package")
    place.world.heard()
    told = place.shell(written("docs/how-to/run-pip-in-a-sandbox.md", "ringfence run -- python3"))
    _kept(place, told)
    assert place.shell(INSTALLED.format("some_package")) == "installed\n" and place.world.heard() == []


# ---- run-npm-or-a-browser.md


REGISTRY = "https://registry.npmjs.org"


def _npm_project(place: Place) -> None:
    """A project of npm's. Some builds of node trust a list of their own, so its settings name the world's authority."""
    installed("npm")
    offered.npm_project(place.work, place.served, REGISTRY, "tiny-thing")
    shutil.copy(place.authority, place.work)
    (place.work / ".npmrc").write_text("cafile=authority.pem\n")


def test_npm_with_its_cache_in_the_current_directory(place: Place) -> None:
    _npm_project(place)
    told = place.shell(written("docs/how-to/run-npm-or-a-browser.md", '--env npm_config_cache="$PWD'))
    found = re.search(r"keep: ringfence commit (\S+),", told)
    assert found and not (place.work / "node_modules").exists(), told
    assert ".npm-cache/" in place.shell(f"ringfence diff {found[1]}")
    place.shell(f"ringfence commit {found[1]} node_modules; ringfence discard {found[1]}")
    assert place.shell("node -p 'require(\"tiny-thing\")'") == "installed\n"
    assert not (place.work / ".npm-cache").exists()


def test_npm_with_one_cache_for_many_runs(place: Place) -> None:
    _npm_project(place)
    text = written("docs/how-to/run-npm-or-a-browser.md", "mkdir -p ~/sandbox")
    place.shell(text)
    assert (place.home / "sandbox-npm/_cacache").is_dir()
    shutil.rmtree(place.served / "tiny-thing")
    assert "added 1 package" in place.shell(text)


# The runner of Playwright's tests is to be had from npm's registry alone; its half that finds and drives a browser
# comes with the package for Python.
RUNNER = """#!/usr/bin/env node
const { chromium } = require("playwright-core");
(async () => {
  const browser = await chromium.launch({ channel: "chromium" });
  const page = await browser.newPage();
  await page.goto("file://" + process.cwd() + "/page.html");
  console.log(process.argv[2] + ": " + await page.textContent("p"));
  await browser.close();
})().catch(error => { console.error(String(error)); process.exit(1) });
"""


def _playwright(home: Path, work: Path) -> None:
    """A project with Playwright, whose browser in the cache of the home directory is the system's."""
    driver = Path(playwright.__file__).parent / "driver/package"
    shutil.copytree(driver, work / "node_modules/playwright-core")
    runner = work / "node_modules/.bin/playwright"
    runner.parent.mkdir()
    runner.write_text(RUNNER)
    runner.chmod(0o755)
    wanted = f"require('{driver}').chromium.executablePath()"
    cache = {"PLAYWRIGHT_BROWSERS_PATH": str(home / ".cache/ms-playwright")}
    browser = Path(output_of(["node", "-p", wanted], work, os.environ | cache).strip())
    assert browser.is_relative_to(home), browser
    browser.parent.mkdir(parents=True)
    browser.write_text('#!/bin/sh\nexec chromium "$@"\n')
    browser.chmod(0o755)


def test_a_browser_of_the_system_and_one_of_playwrights(tmp_path: Path) -> None:
    for name in ("chromium", "npm"):
        installed(name)
    work = tmp_path / "work"
    work.mkdir()
    (work / "page.html").write_text("<p>a page</p><script>document.write('<b>and its ' + 'script</b>')</script>")
    _playwright(tmp_path, work)
    text = written("docs/how-to/run-npm-or-a-browser.md", "ringfence run --wall 120")
    printed = shell(text, tmp_path, {"HOME": str(tmp_path)})
    assert "<b>and its script</b>" in printed
    assert "test: a page" in printed
