"""Real programs, as they are, in a strict sandbox with a network list: they reach what is listed, with proxy variables
and without, and beside each is what it says of a name that is not.

The servers are the world's (``tests/egress_world``); the only setting that a program gets is whom to trust.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.egress_world import API, World, egress_of, offered, spoken
from tests.packages import program as _program
from tests.testable import not_testable_here

from ringfence.egress.addresses import PROXY_ADDRESS, PROXY_PORT
from ringfence.sandbox.networks import TRUST_VARIABLES

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LISTED, UNLISTED = "api.example.com", "evil.example.net"
WORDS = f'add "{UNLISTED}'
"""Of the gateway."""
PROXY = f"http://{PROXY_ADDRESS}:{PROXY_PORT}"
PROXIES = {name: PROXY for word in ("http_proxy", "https_proxy", "all_proxy") for name in (word, word.upper())}
WAYS: dict[str, dict[str, str]] = {"direct": {}, "proxy": PROXIES}
"""What a program is told of the way; the first is nothing."""
SOCKS = {"ALL_PROXY": f"socks5h://{PROXY_ADDRESS}:{PROXY_PORT}"}
PROTOCOLS = {"direct": "tls", "proxy": "connect"}
each_way = pytest.mark.parametrize("way", WAYS)


class Site:
    """A world whose servers have files, and sandboxes that see the directory of what programs need."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.served = folder, folder / "served"
        self.served.mkdir()
        self.world = World(folder)

    def run(self, argv: list[str], way: str, network: object = (LISTED,), **env: str) -> dict[str, object]:
        trust = dict.fromkeys(TRUST_VARIABLES, str(self.folder / "authority.pem"))
        policy = {"isolation": "strict", "network": network, "readable_paths": [str(self.folder)], "pids_max": 128}
        return self.world.ask(op="run", argv=argv, policy=policy, env={**trust, **WAYS[way], **env})


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="clients-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        made = Site(Path(name))
        yield made
        made.world.close()


def _worked(outcome: dict[str, object], protocol: str) -> str:
    """Return what a program printed that has reached the listed server, and nobody else."""
    told = egress_of(outcome)
    assert outcome["status"] == "OK", (outcome["reason"], outcome["stdout"], outcome["stderr"], told)
    assert told and {(row["decision"], row["name"], row["address"]) for row in told} == {("allowed", LISTED, API)}, told
    assert {row["protocol"] for row in told} == {protocol}
    return str(outcome["stdout"])


def _refused(site: Site, outcome: dict[str, object], *says: str) -> None:
    """The program fails, its output says why as far as its protocol has room, the event says all, no server hears."""
    told = [row for row in egress_of(outcome) if row["decision"] == "refused"]
    output = f"{outcome['stdout']}{outcome['stderr']}"
    assert outcome["status"] == "FAILED", (output, told)
    assert any(word in output for word in says), (output, told)
    assert told and {row["name"] for row in told} == {UNLISTED}, told
    assert all(WORDS in str(row["reason"]) for row in told), told
    assert site.world.heard() == []


# ---- curl


CURL = ["curl", "-sS", "-m", "20", "--fail-with-body"]


@each_way
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_curl(site: Site, way: str, scheme: str) -> None:
    (site.served / "page").write_text("a page\n")
    outcome = site.run([*CURL, f"{scheme}://{LISTED}/page"], way)
    assert _worked(outcome, PROTOCOLS[way] if scheme == "https" else "http") == "a page\n"


@pytest.mark.parametrize(("way", "scheme", "says"), [
    ("direct", "http", "Could not resolve host"), ("direct", "https", "Could not resolve host"),
    ("proxy", "http", WORDS), ("proxy", "https", "403"),
])  # fmt: skip
def test_curl_is_refused(site: Site, way: str, scheme: str, says: str) -> None:
    site.world.heard()
    _refused(site, site.run([*CURL, f"{scheme}://{UNLISTED}/page"], way), says)


# ---- git


def _repository(site: Site) -> None:
    """Lay out a repository that a server of plain files can offer."""
    if (site.served / "project.git").exists():
        return
    work, git = site.folder / "work", [_program("git"), "-c", "user.name=Someone", "-c", "user.email=someone@localhost"]
    for command in (
        ["init", "-q", "-b", "main", str(work)],
        ["-C", str(work), "commit", "-q", "--allow-empty", "-m", "the first commit"],
        ["clone", "-q", "--bare", str(work), str(site.served / "project.git")],
        ["-C", str(site.served / "project.git"), "update-server-info"],
    ):
        subprocess.run([*git, *command], check=True, capture_output=True)


@each_way
def test_git(site: Site, way: str) -> None:
    _repository(site)
    script = f"git clone -q https://{LISTED}/project.git && git -C project log --format=%s"
    assert _worked(site.run(["sh", "-ec", script], way), PROTOCOLS[way]) == "the first commit\n"


@pytest.mark.parametrize(("way", "says"), [("direct", "Could not resolve host"), ("proxy", "403")])
def test_git_is_refused(site: Site, way: str, says: str) -> None:
    _program("git")
    site.world.heard()
    _refused(site, site.run(["git", "clone", "-q", f"https://{UNLISTED}/project.git"], way), says)


# ---- pip


def _index(site: Site) -> None:
    """Lay out an index with one wheel."""
    if not (site.served / "simple").exists():
        offered.index(site.served, [offered.wheel(site.folder / "wheels", "tiny-thing")])


def _pip(host: str) -> str:
    if importlib.util.find_spec("pip") is None:
        not_testable_here("pip is not installed")
    options = "--no-cache-dir --disable-pip-version-check --no-input --retries 1 --target here"
    index = f"--index-url https://{host}/simple"
    return f"{sys.executable} -m pip install {options} {index} tiny-thing"


@each_way
def test_pip(site: Site, way: str) -> None:
    _index(site)
    script = f"{_pip(LISTED)} >&2; PYTHONPATH=here {sys.executable} -c 'import tiny_thing; print(tiny_thing.WORD)'"
    outcome = site.run(["sh", "-ec", script], way, PIP_CONFIG_FILE="/dev/null")
    assert _worked(outcome, PROTOCOLS[way]) == "installed\n"


@pytest.mark.parametrize(("way", "says"), [("direct", "Name or service not known"), ("proxy", WORDS)])
def test_pip_is_refused(site: Site, way: str, says: str) -> None:
    site.world.heard()
    _refused(site, site.run(["sh", "-ec", _pip(UNLISTED)], way, PIP_CONFIG_FILE="/dev/null"), says)


# ---- node


NODE = """
fetch(process.argv[1]).then(async r => { console.log((await r.text()).trim()); process.exit(r.ok ? 0 : 1) })
  .catch(error => { console.error(String(error.cause || error)); process.exit(1) })
"""


@each_way
def test_node(site: Site, way: str) -> None:
    """Its fetch does not look at proxy variables, and need not."""
    (site.served / "page").write_text("a page\n")
    outcome = site.run([_program("node"), "-e", NODE, f"https://{LISTED}/page"], way)
    assert _worked(outcome, "tls") == "a page\n"


@each_way
def test_node_is_refused(site: Site, way: str) -> None:
    site.world.heard()
    _refused(site, site.run([_program("node"), "-e", NODE, f"https://{UNLISTED}/page"], way), "ENOTFOUND")


# ---- raw TCP


PSQL = ["psql", "-X", "-A", "-t", "-w", "-c", "select 'a row'", "-d"]
POSTGRES = f"{LISTED}:{spoken.POSTGRES}"


@each_way
def test_psql(site: Site, way: str) -> None:
    _program("psql")
    outcome = site.run([*PSQL, f"postgresql://someone@{POSTGRES}/base"], way, [POSTGRES], PGCONNECT_TIMEOUT="20")
    assert _worked(outcome, "tcp") == "select 'a row'\n"


@each_way
def test_psql_is_refused(site: Site, way: str) -> None:
    _program("psql")
    site.world.heard()
    url = f"postgresql://someone@{UNLISTED}:{spoken.POSTGRES}/base"
    _refused(site, site.run([*PSQL, url], way, [POSTGRES]), "could not translate host name")


MAIL = """
import smtplib, sys
link = smtplib.SMTP(sys.argv[1], int(sys.argv[2]), timeout=120)
print(link.noop()[1].decode(), link.quit()[1].decode())
"""


@each_way
def test_a_protocol_in_which_the_server_speaks_first(site: Site, way: str) -> None:
    argv = [sys.executable, "-I", "-c", MAIL, LISTED, str(spoken.SMTP)]
    assert _worked(site.run(argv, way, [f"{LISTED}:{spoken.SMTP}"]), "tcp") == "yes goodbye\n"


@each_way
def test_a_client_of_a_server_that_speaks_first_is_refused(site: Site, way: str) -> None:
    site.world.heard()
    argv = [sys.executable, "-I", "-c", MAIL, UNLISTED, str(spoken.SMTP)]
    _refused(site, site.run(argv, way, [f"{LISTED}:{spoken.SMTP}"]), "Name or service not known")


@pytest.mark.parametrize("host", [LISTED, UNLISTED])
def test_raw_tcp_by_socks(site: Site, host: str) -> None:
    site.world.heard()
    argv = [*CURL, f"smtp://{host}:{spoken.SMTP}", "-X", "HELP"]
    outcome = site.run(argv, "direct", [f"{LISTED}:{spoken.SMTP}"], **SOCKS)
    if host == LISTED:
        assert "help yourself" in _worked(outcome, "socks5")
    else:
        _refused(site, outcome, f"SOCKS5 connection to {UNLISTED}. (2)")


# ---- clients in Python


GET = {
    "requests": "import requests, sys\nr = requests.get(sys.argv[1], timeout=120)\nprint(r.text.strip())\n"
    "sys.exit(not r.ok)",
    "aiohttp": """
import aiohttp, asyncio, sys
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session, session.get(sys.argv[1]) as r:
        print((await r.text()).strip())
        return not r.ok
sys.exit(asyncio.run(main()))
""",
}


@pytest.fixture(scope="module")
def packages(site: Site) -> Path | None:
    """Where they are, if not in this environment: fetched into the directory that sandboxes see."""
    if all(importlib.util.find_spec(name) for name in GET):
        return None
    folder = site.folder / "packages"
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *GET]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        not_testable_here(f"{' and '.join(GET)} can't be fetched: {done.stderr.strip()[-300:]}")
    return folder


def _get(site: Site, packages: Path | None, client: str, way: str, url: str) -> dict[str, object]:
    more = {"PYTHONPATH": str(packages)} if packages else {}
    return site.run([sys.executable, "-c", GET[client], url], way, **more)


@pytest.mark.long
@pytest.mark.once
@each_way
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("client", GET)
def test_clients_in_python(site: Site, packages: Path | None, client: str, scheme: str, way: str) -> None:
    (site.served / "page").write_text("a page\n")
    outcome = _get(site, packages, client, way, f"{scheme}://{LISTED}/page")
    assert _worked(outcome, PROTOCOLS[way] if scheme == "https" else "http") == "a page\n"


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize(("way", "scheme", "says"), [
    ("direct", "https", "Name or service not known"), ("proxy", "http", WORDS), ("proxy", "https", WORDS),
])  # fmt: skip
@pytest.mark.parametrize("client", GET)
def test_clients_in_python_are_refused(
    site: Site, packages: Path | None, client: str, way: str, scheme: str, says: str
) -> None:
    site.world.heard()
    _refused(site, _get(site, packages, client, way, f"{scheme}://{UNLISTED}/page"), says)


# ---- under a rule that looks into TLS


INSPECTED = {"host": LISTED, "methods": ["GET"], "paths": ["/page", "/project.git/*", "/simple/*"]}
"""Programs know the authority by the sandbox's own variables; the gateway believes the world's."""
_ONCE = (pytest.mark.long, pytest.mark.once)
CLIENTS = ("curl", "git", "pip", "node", *(pytest.param(name, marks=_ONCE) for name in GET))
PRINTS = {"git": "the first commit", "pip": "Successfully installed"}


def _asking(site: Site, client: str, *, allowed: bool) -> list[str]:
    """Return a command that asks for what the rule allows, or for another path of the same server."""
    if client == "git":
        _repository(site)
        name = "project" if allowed else "other"
        return ["sh", "-ec", f"git clone -q https://{LISTED}/{name}.git && git -C {name} log --format=%s"]
    if client == "pip":
        _index(site)
        # Of a page of an index pip shows no error.
        other = f"https://{LISTED}/other/tiny_thing-1.0-py3-none-any.whl"
        return ["sh", "-ec", _pip(LISTED) if allowed else _pip(LISTED).replace("tiny-thing", other)]
    argv = {"curl": CURL, "node": ["node", "-e", NODE]}.get(client) or [sys.executable, "-c", GET[client]]
    return [_program(argv[0]), *argv[1:], f"https://{LISTED}/{'page' if allowed else 'other'}"]


def _look_into(
    site: Site, client: str, way: str, request: pytest.FixtureRequest, *, allowed: bool
) -> dict[str, object]:
    packages = request.getfixturevalue("packages") if client in GET else None
    more = {"PIP_CONFIG_FILE": "/dev/null"} | ({"PYTHONPATH": str(packages)} if packages else {})
    argv = _asking(site, client, allowed=allowed)
    policy = {"isolation": "strict", "network": [INSPECTED], "readable_paths": [str(site.folder)], "pids_max": 128}
    return site.world.ask(op="run", argv=argv, policy=policy, env={**WAYS[way], **more})


@each_way
@pytest.mark.parametrize("client", CLIENTS)
def test_an_inspected_client(site: Site, client: str, way: str, request: pytest.FixtureRequest) -> None:
    (site.served / "page").write_text("a page\n")
    outcome = _look_into(site, client, way, request, allowed=True)
    protocol = "tls" if client == "node" else PROTOCOLS[way]
    assert PRINTS.get(client, "a page") in _worked(outcome, protocol)


@each_way
@pytest.mark.parametrize("client", CLIENTS)
def test_an_inspected_client_shows_why_it_is_refused(
    site: Site, client: str, way: str, request: pytest.FixtureRequest
) -> None:
    site.world.heard()
    outcome = _look_into(site, client, way, request, allowed=False)
    output, told = f"{outcome['stdout']}{outcome['stderr']}", egress_of(outcome)
    assert outcome["status"] == "FAILED" and told, (output, told)
    for row in told:
        assert row["decision"] == "refused" and "/other" in str(row["reason"]), told
    assert f"ringfence: {told[0]['reason']}" in " ".join(output.split()), (output, told)
    assert site.world.heard() == []


BY_TLS_ALONE = {**INSPECTED, "ports": [443]}


@each_way
def test_a_program_that_knows_no_tls_is_carried_on_by_it(site: Site, way: str) -> None:
    """The entry lists 443 alone: plain HTTP to the name goes on as TLS, and nothing else is at port 80."""
    (site.served / "page").write_text("a page\n")
    site.world.heard()
    policy = {"isolation": "strict", "network": [BY_TLS_ALONE]}
    order = {"op": "run", "policy": policy, "env": WAYS[way]}
    outcome = site.world.ask(argv=[*CURL, f"http://{LISTED}/page"], **order)
    assert outcome["stdout"] == "a page\n", (outcome["stderr"], egress_of(outcome))
    assert {row[1] for row in site.world.heard()} == {443}
    refused = site.world.ask(argv=[*CURL, f"https://{LISTED}:80/page"], **order)
    assert refused["stdout"] == "" and [row["decision"] for row in egress_of(refused)] == ["refused"]
    assert site.world.heard() == []
