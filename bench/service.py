"""What does HTTP cost? Runs a second and the time of a warm snippet, through the service and in the library's pool.

The service is a process of its own, as in life; its client is ``ringfence.client`` in this one. Asked for: 0.6 of
the library's runs a second or more, and at most twice its time.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import peers
from bench.contenders import expect, open_pool
from bench.harness import Answer, Effort, NotHere, Table, compare, race, take_turns, timed_ms
from bench.throughput import rate
from ringfence.client import Client
from ringfence.errors import SandboxError

QUESTION = "A Python snippet through the service, against the same pool in the library"
LIBRARY, SERVICE = "the library's pool", "the service, over HTTP"
WARM, AT_ONCE = 8, (1, 4, 16)
_SETTINGS = f"sandboxes: 32\nspare_bytes: 1\nqueue: 1000\npolicies: {{default: {{warm: {WARM}}}}}\n"


def ask(effort: Effort) -> Answer:
    jobs, turns = effort.pick(160, 32, 2), effort.pick(9, 5)
    with contextlib.ExitStack() as stack:
        actions = {LIBRARY: _local(stack), SERVICE: _remote(stack)}
        for action in actions.values():
            action()
        tables = [race("one after the other", {name: timed_ms(each) for name, each in actions.items()},
                       turns=effort.pick(80, 20))]  # fmt: skip
        tables += [_rates(actions, threads, jobs, turns) for threads in AT_ONCE]
    return Answer(tables=tuple(tables))


def _rates(actions: dict[str, Callable[[], None]], threads: int, jobs: int, turns: int) -> Table:
    with ThreadPoolExecutor(threads) as executor:
        rates = {name: rate(executor, action, jobs) for name, action in actions.items()}
        rows = compare(take_turns(rates, turns=turns))
    return Table(title=f"{threads} at once", unit="runs/s", rows=rows, more_is_better=True)


def _local(stack: contextlib.ExitStack) -> Callable[[], None]:
    pool = stack.enter_context(open_pool(warm=WARM))
    return lambda: expect(pool.run_source(peers.SNIPPET), peers.ANSWER)


def _remote(stack: contextlib.ExitStack) -> Callable[[], None]:
    """A service with the same number of sandboxes standing by, with its log as it comes."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise NotHere("pip install 'ringfence[service]'") from error
    del starlette, uvicorn
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    config = folder / "service.yaml"
    config.write_text(_SETTINGS)
    words = ["--port", "0", "--config", str(config), "--state", str(folder / "state")]
    line = [sys.executable, "-m", "ringfence", "serve", *words]
    log = stack.enter_context((folder / "log").open("w"))
    process = stack.enter_context(_ended(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)))
    assert process.stdout is not None
    client = Client(process.stdout.readline().strip(), token="", patience_s=600)
    _await(client)
    return lambda: expect(client.run_source(peers.SNIPPET), peers.ANSWER)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]):  # type: ignore[no-untyped-def]
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def _await(client: Client) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            client.status()
            return
        except SandboxError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
