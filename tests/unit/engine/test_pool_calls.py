"""Calls in the background and over many items: futures, failures as data, cancelling, a shorter time for each."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, as_completed, wait
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.engine.pooled import policy_of

from ringfence import CallError, Pool, Status, UnavailableError, UsageError
from ringfence.engine.job_future import CallFuture

pytestmark = [pytest.mark.system, pytest.mark.privileges]


def _work(kind: str) -> str:
    import os

    if kind == "raise":
        raise ValueError("wrong")
    if kind == "exit":
        os._exit(0)
    if kind == "unsendable":
        return object()  # type: ignore[return-value]
    if kind == "loop":
        while True:
            pass
    return kind.upper()


# ---- many items


def test_try_map_tells_how_each_item_ended(pool: Pool) -> None:
    done = pool.try_map(_work, ["a", "raise", "exit", "loop", "unsendable", "b"], timeout=6)
    assert [each.ok for each in done] == [True, False, False, False, False, True]
    assert [done[0].value, done[5].value] == ["A", "B"]
    assert done[1].raised is not None and done[1].raised.type_name == "ValueError"
    assert done[2].status is Status.OK and "without returning" in done[2].problem
    assert (done[3].status, done[3].outcome.rc) == (Status.TIMEOUT, 124)
    assert "object" in done[4].problem


def test_map_with_a_time_for_each(pool: Pool) -> None:
    assert pool.map(_work, ["a", "b"], timeout=30) == ["A", "B"]
    with pytest.raises(CallError, match=r"TIMEOUT: still running after 0\.5 s"):
        pool.map(_work, ["loop"], timeout=0.5)


def test_try_map_of_nothing_is_nothing(pool: Pool) -> None:
    assert pool.try_map(_work, []) == []


# ---- a shorter time


def test_each_call_can_have_less_time(pool: Pool) -> None:
    short = pool.with_limits(wall_time_s=0.5)
    done = short.try_call(_work, "loop")
    assert (done.status, done.outcome.enforced["wall_time"].requested) == (Status.TIMEOUT, 0.5)
    assert short.run(["sleep", "600"]).status is Status.TIMEOUT
    assert pool.run(["sleep", "600"], timeout=0.5).status is Status.TIMEOUT
    assert pool.run_source("while True: pass", timeout="500ms").status is Status.TIMEOUT  # type: ignore[arg-type]
    assert pool.submit(["sleep", "600"], timeout=0.5).result(60).status is Status.TIMEOUT
    with pytest.raises(CallError, match="TIMEOUT"):
        short.submit_call(_work, "loop").result(60)
    assert pool.call(_work, "the pool itself has all of it") and pool._deadline_s is None


def test_other_limits_and_more_time_are_refused(pool: Pool) -> None:
    with pytest.raises(UsageError, match="mem_bytes: the sandboxes of a pool are made before") as error:
        pool.with_limits(wall_time_s=1, mem_bytes=2**20)  # type: ignore[arg-type]
    assert "another pool" in error.value.hint
    with pytest.raises(UsageError, match="more than the 60 s that the pool allows"):
        pool.with_limits(wall_time_s=61)
    with pytest.raises(UsageError, match="timeout: "):
        pool.run(["true"], timeout=-1)


def test_what_has_less_time_keeps_the_pool_alive() -> None:
    short = Pool(policy_of("strict"), warm=1).with_limits(wall_time_s=30)
    gc.collect()
    assert short.call(_work, "on") == "ON"
    short.close()
    with pytest.raises(UsageError, match="closed"):
        short.call(_work, "off")


def test_a_command_has_the_keywords_of_run(pool: Pool) -> None:
    show = ["sh", "-c", 'echo "$COLOUR"; cat']
    assert pool.run(show, input=b"fed", env={"COLOUR": "red"}).stdout == b"red\nfed"
    assert pool.submit(show, input=b"fed", env={"COLOUR": "red"}).result(60).stdout == b"red\nfed"
    with pytest.raises(UsageError, match="unknown keyword 'shell'"):
        pool.run(["true"], shell=True)  # type: ignore[arg-type]


# ---- futures


def test_calls_in_the_background_are_futures_of_concurrent_futures(pool: Pool) -> None:
    futures = {pool.submit_call(_work, text): text for text in "abcdefgh"}
    assert all(isinstance(future, Future) for future in futures)
    assert {futures[future]: future.result() for future in as_completed(futures, timeout=60)} == {
        text: text.upper() for text in "abcdefgh"
    }
    done, left = wait([pool.submit_call(pow, 2, 5), pool.submit_call(_work, "loop")], 60, FIRST_COMPLETED)
    assert [future.result() for future in done] == [32] and len(left) == 1
    assert left.pop().cancel()


def test_keywords_reach_the_function(pool: Pool) -> None:
    assert pool.submit_call(int, "ff", base=16).result(60) == 255


def test_what_the_guest_does_wrong_is_the_exception_of_the_future(pool: Pool) -> None:
    raised = pool.submit_call(_work, "raise")
    with pytest.raises(CallError, match="ValueError: wrong") as error:
        raised.result(60)
    assert error.value.type_name == "ValueError"
    assert raised.returned().raised is not None and raised.returned().status is Status.FAILED
    silent = pool.submit_call(_work, "exit").exception(60)
    assert isinstance(silent, CallError) and "without returning" in str(silent)
    assert pool.submit_call(_work, "fine").returned(60).value == "FINE"


def test_what_can_not_be_sent_is_said_at_once(pool: Pool) -> None:
    with pytest.raises(UsageError, match="can't be sent"):
        pool.submit_call(_work, threading.Lock())


def test_a_running_call_is_cancelled_with_its_sandbox(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1) as pool:
        running = pool.submit_call(_work, "loop")
        waiting = pool.submit_call(_work, "next")
        assert eventually(running.running)
        begun = time.monotonic()
        assert running.cancel() and running.cancelled() and running.done() and not running.running()
        with pytest.raises(CancelledError):
            running.result(60)
        assert next(iter(as_completed([running], timeout=60))) is running
        assert waiting.result(60) == "NEXT" and time.monotonic() - begun < 50
        assert running.cancel()
        assert not waiting.cancel() and waiting.result() == "NEXT"


def test_one_that_waits_is_cancelled_and_its_place_in_the_line_is_free(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1, queue_limit=1) as pool:
        running, waiting = pool.submit_call(_work, "loop"), pool.submit_call(_work, "never")
        with pytest.raises(UnavailableError, match="full"):
            pool.submit_call(_work, "too many")
        assert waiting.cancel()
        assert wait([waiting], 60).done == {waiting}  # at once, although nothing has ended
        after = pool.submit_call(_work, "after")
        running.cancel()
        assert after.result(60) == "AFTER"


def test_callbacks_and_asyncio_take_them(pool: Pool) -> None:
    heard: list[Future[object]] = []
    future = pool.submit_call(_work, "a")
    future.add_done_callback(heard.append)
    assert future.result(60) == "A" and eventually(lambda: heard == [future])

    async def several() -> list[object]:
        return list(await asyncio.gather(*(asyncio.wrap_future(pool.submit_call(_work, text)) for text in "xyz")))

    assert asyncio.run(several()) == ["X", "Y", "Z"]


def test_a_pool_that_closes_ends_all_calls(level: str) -> None:
    others = set(threading.enumerate())
    pool = Pool(policy_of(level), warm=1, at_once=1)
    running, waiting = pool.submit_call(_work, "loop"), [pool.submit_call(_work, "never") for _ in range(20)]
    assert eventually(running.running)
    pool.close()
    with pytest.raises(CallError, match="KILLED_KILL"):
        running.result(60)
    for future in waiting:
        with pytest.raises(UsageError, match="the pool was closed"):
            future.result(60)
    with pytest.raises(UsageError, match="closed"):
        pool.submit_call(_work, "late")
    assert eventually(lambda: set(threading.enumerate()) <= others)


def test_a_pool_may_be_closed_by_the_callback_of_a_call(level: str) -> None:
    pool, closed = Pool(policy_of(level), warm=1, at_once=1), threading.Event()

    def close(_: object) -> None:
        pool.close()
        closed.set()

    pool.submit_call(_work, "a").add_done_callback(close)
    assert closed.wait(60)


def test_many_calls_wait_without_a_thread_each(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=2) as pool:
        before = threading.active_count()
        futures: list[CallFuture] = [pool.submit_call(time.sleep, 0.01) for _ in range(60)]
        assert threading.active_count() - before <= 2
        assert [future.result(120) for future in futures] == [None] * 60


# ---- a function in the place of a command


@pytest.mark.parametrize("arguments", [(), (1, 2)])
def test_submit_and_run_say_where_functions_go(pool: Pool, arguments: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="_work is a function, not a command") as error:
        pool.submit(_work, *arguments)  # type: ignore[arg-type]
    assert "submit_call(function" in error.value.hint
    with pytest.raises(UsageError, match="is a function") as error:
        pool.run(_work)  # type: ignore[arg-type]
    assert "pool.call(function" in error.value.hint
    with pytest.raises(UsageError, match="one command"):
        pool.submit("ls", Path("/"))  # type: ignore[arg-type]
