"""The program of docs/how-to/run-ten-thousand-snippets.md for several services, of which one is killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples import filled, written
from tests.examples.own_network import own_network

if sys.platform != "linux":
    pytest.skip("needs network namespaces", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
AROUND = """
import itertools, subprocess, urllib.request

def served(port):
    process = subprocess.Popen(["ringfence", "serve", "--port", str(port), "--state", f"state-{port}"],
                               stdout=subprocess.PIPE, text=True)
    while str(port) not in process.stdout.readline():
        assert process.poll() is None
    return process

one, two = served(8701), served(8702)
counted, plain = itertools.count(1), Client.run_source

def run_source(self, source):
    if next(counted) == 10:
        two.kill()
        two.wait()
    return plain(self, source)

Client.run_source = run_source
outcomes = asyncio.run(score([f"print({number})" for number in range(40)]))
print(sum(outcome.stdout == b"%d\\n" % number for number, outcome in enumerate(outcomes)))
one.kill()
one.wait()
print(asyncio.run(score(["print(1)"])))
"""
"""The second service is killed in the middle, then the first one too."""


def test_a_service_that_is_killed_loses_no_snippet(tmp_path: Path) -> None:
    addresses = {"https://one.example.org": "http://127.0.0.1:8701", "https://two.example.org": "http://127.0.0.1:8702"}
    text = filled(written("docs/how-to/run-ten-thousand-snippets.md", "SERVICES = ["), **addresses)
    (tmp_path / "example.py").write_text(text + AROUND)
    with own_network(tmp_path) as network:
        assert network.shell("python ../example.py 2> said").splitlines() == ["40", "[None]"]
