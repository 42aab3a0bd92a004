"""What does HTTP cost? Runs a second and the time of a warm snippet, through the service and in the library's pool.

The service is a process of its own, as in life. For the time of one snippet the library's pool and the service's client
have a process each as well: a pool makes its next sandbox in threads of its process, and a client beside it would wait
for them. For runs a second both are in this process. Asked for: 0.6 of the library's runs a second or more, and at most
twice its time.
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
from bench.harness import Answer, Effort, NotHere, Table, Turn, compare, race, take_turns, timed_ms
from bench.throughput import rate
from ringfence.client import Client
from ringfence.errors import SandboxError, hint_for_extra

QUESTION = "A Python snippet through the service, against the same pool in the library"
LIBRARY, SERVICE = "the library's pool", "the service, over HTTP"
WARM, AT_ONCE = 8, (1, 4, 16)
_SETTINGS = f"sandboxes: 32\nspare_bytes: 1\nqueue: 1000\npolicies: {{default: {{warm: {WARM}}}}}\n"


def ask(effort: Effort) -> Answer:
    jobs, turns = effort.pick(160, 32, 2), effort.pick(9, 5)
    with contextlib.ExitStack() as stack:
        address = _served(stack)
        alone = {LIBRARY: _driven(stack, ""), SERVICE: _driven(stack, address)}
        tables = [race("one after the other", alone, turns=effort.pick(300, 20))]
    with contextlib.ExitStack() as stack:
        actions = {LIBRARY: _local(stack), SERVICE: _remote(_served(stack))}
        for action in actions.values():
            action()
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


def _driven(stack: contextlib.ExitStack, address: str) -> Turn:
    """One snippet in a process of its own, and the milliseconds that it took there. No address: by the library."""
    line = [sys.executable, "-m", "bench.service", address]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[1])
    driver = stack.enter_context(process)
    assert driver.stdin is not None and driver.stdout is not None
    words, times = driver.stdin, driver.stdout
    stack.callback(words.close)

    def turn() -> float:
        words.write("\n")
        words.flush()
        return float(times.readline())

    return turn


def drive(address: str) -> None:
    """Run the snippet once for each line that comes in, and tell how long it took."""
    with contextlib.ExitStack() as stack:
        timed = timed_ms(_remote(address) if address else _local(stack))
        for _ in sys.stdin:
            print(timed(), flush=True)


def _remote(address: str) -> Callable[[], None]:
    client = Client(address, token="", patience_s=600)
    _await(client)
    return lambda: expect(client.run_source(peers.SNIPPET), peers.ANSWER)


def _served(stack: contextlib.ExitStack) -> str:
    """The address of a service with the same number of sandboxes standing by, with its log as it comes."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise NotHere(hint_for_extra("service")) from error
    del starlette, uvicorn
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    config = folder / "service.yaml"
    config.write_text(_SETTINGS)
    words = ["--port", "0", "--config", str(config), "--state", str(folder / "state")]
    line = [sys.executable, "-m", "ringfence", "serve", *words]
    log = stack.enter_context((folder / "log").open("w"))
    process = stack.enter_context(_ended(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)))
    assert process.stdout is not None
    return process.stdout.readline().strip()


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


if __name__ == "__main__":
    drive(sys.argv[1])
