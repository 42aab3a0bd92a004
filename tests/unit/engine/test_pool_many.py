"""Many jobs in one call, and jobs that are awaited: kinds, order, refusals, cancelling, the loop that goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, as_completed

import pytest
from tests.patience import eventually
from tests.unit.engine.pooled import policy_of

from ringfence import CallError, Job, Outcome, Pool, Status, UnavailableError, UsageError
from ringfence.backends import leader_sources, strict
from ringfence.engine.job_future import JobFuture
from ringfence.roles import zygote_client

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]


def _double(number: int) -> int:
    return number * 2


def _loop() -> None:
    while True:
        pass


def test_sources_commands_and_calls_go_in_one_call_and_come_back_in_order(pool: Pool) -> None:
    cat = Job(argv=("cat",), stdin=b"4")
    jobs = ["print(1)", b"print(2)", ["echo", "3"], cat, (_double, 4), lambda: 6, ("echo", "7")]
    first, second, third, fourth, fifth, sixth, seventh = (done.result(60) for done in pool.submit_many(jobs))
    outputs = [first.stdout, second.stdout, third.stdout, fourth.stdout, seventh.stdout]
    assert outputs == [b"1\n", b"2\n", b"3\n", b"4", b"7\n"] and (fifth, sixth) == (8, 6)


def test_what_a_guest_does_is_the_result_of_its_own_future_only(pool: Pool) -> None:
    raised, failed, fine = pool.submit_many([(int, "x"), "raise SystemExit(3)", (_double, 1)])
    assert isinstance(raised.exception(60), CallError)
    assert failed.result(60).rc == 3 and fine.result(60) == 2


def test_a_thousand_jobs_wait_without_a_thread_each() -> None:
    with Pool(policy_of("process"), warm=2, at_once=2) as pool:
        before = threading.active_count()
        futures = pool.submit_many((_double, number) for number in range(1000))
        assert threading.active_count() - before <= 2 and len(futures) == 1000
        done = next(as_completed(futures, 60))
        assert done.result() % 2 == 0
        pool.close()
        assert all(future.done() for future in futures)


def test_tickets_too_wait_without_a_thread_each(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=2) as pool:
        before = threading.active_count()
        tickets = [pool.submit(["true"]) for _ in range(30)]
        assert threading.active_count() - before <= 2
        assert all(ticket.result(120).ok for ticket in tickets)


def test_each_has_the_time_that_was_given(pool: Pool) -> None:
    endless, quick = pool.submit_many(["while True: pass", "print(1)"], timeout=4)
    assert endless.result(60).status is Status.TIMEOUT and quick.result(60).ok
    with pytest.raises(UsageError, match="more than the 60 s"):
        pool.submit_many(["print(1)"], timeout=10**6)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ("print(1)", "is not a list of jobs"),
        (b"print(1)", "is not a list of jobs"),
        (5, "5 is not a list of jobs"),
        (None, "None is not a list of jobs"),
        (Job(argv=("true",)), "is not a list of jobs"),
        (["print(1)", 5], r"jobs\[1\]: 5 is not a job"),
        ([None], r"jobs\[0\]: None is not a job"),
        ([{"source": "1"}], r"jobs\[0\]: .* is not a job"),
        ([[]], r"jobs\[0\]: no command"),
        ([()], r"jobs\[0\]: no command"),
        ([["true"], ["echo", 5]], r"jobs\[1\]: 5 is not an argument"),
        ([(len, threading.Lock())], r"jobs\[0\]: .*lock"),
    ],
)
def test_what_can_not_be_is_named_and_nothing_begins(pool: Pool, jobs: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        pool.submit_many(jobs)  # type: ignore[arg-type]
    assert caught.value.hint and not pool._occupancy.occupants


def test_no_jobs_are_no_futures(pool: Pool) -> None:
    assert pool.submit_many([]) == []


def test_more_than_the_line_takes_begins_none_of_them(level: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1, queue_limit=2) as pool:
        with pytest.raises(UnavailableError, match="full"):
            pool.submit_many([_loop] * 5)
        eventually(lambda: not pool._occupancy.occupants)
        assert pool.call(_double, 2) == 4


def test_ctrl_c_while_they_are_handed_over_ends_those_that_were(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    join, came = JobFuture.__init__, []

    def interrupted(self: JobFuture, pool: Pool, job: Job) -> None:
        came.append(job)
        if len(came) == 4:
            raise KeyboardInterrupt
        join(self, pool, job)

    with Pool(policy_of(level), warm=1, at_once=2) as pool:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(JobFuture, "__init__", interrupted)
            pool.submit_many([_loop] * 6)
        eventually(lambda: not pool._occupancy.occupants and not pool._queue._served)


# ---- zygotes


@pytest.mark.parametrize(("cores", "zygotes"), [(2, 1), (8, 4)])
def test_a_busy_pool_has_as_many_zygotes_as_the_processors_are_worth(
    cores: int, zygotes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(leader_sources, "BEFORE_ANOTHER", 1)
    mounts = strict.host.mount_table()
    monkeypatch.setattr(strict.host, "mount_table", lambda: mounts)  # other tests mount, which asks for a new zygote
    zygote_client.close_all()
    parents = set()
    with Pool(policy_of("strict"), warm=1, at_once=2) as pool:
        for _ in range(12):
            future = pool.submit_many(["import time; time.sleep(30)"])[0]
            eventually(lambda: any(each.leader for each in pool._occupancy.visits()))
            parents |= {each._source.pid() for each in pool._occupancy.visits()}
            future.cancel()
            eventually(lambda: not pool._occupancy.occupants)
        assert pool.map(_double, range(8)) == [number * 2 for number in range(8)]
    assert len(parents) == zygotes == len(zygote_client._standing)
    zygote_client.close_all()


# ---- asyncio


def test_jobs_are_awaited_and_the_loop_goes_on(pool: Pool) -> None:
    async def work() -> tuple[int, list[object]]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        heart = asyncio.create_task(beat())
        jobs = (pool.run_async("import time; time.sleep(0.3)"), pool.run_async((_double, 21)), pool.run_async(["true"]))
        done = await asyncio.gather(*jobs)
        heart.cancel()
        return beats, list(done)

    beats, (first, second, third) = asyncio.run(work())
    assert beats and second == 42
    assert isinstance(first, Outcome) and first.ok and isinstance(third, Outcome) and third.ok


def test_futures_are_awaited_and_gathered(pool: Pool) -> None:
    async def work() -> list[object]:
        futures = pool.submit_many([(_double, n) for n in range(10)])
        return list(await asyncio.gather(*futures, pool.submit_call(abs, -5)))

    assert asyncio.run(work()) == [n * 2 for n in range(10)] + [5]


def test_what_a_call_raises_is_raised_where_it_is_awaited(pool: Pool) -> None:
    with pytest.raises(CallError, match="invalid literal"):
        asyncio.run(pool.run_async((int, "x")))
    with pytest.raises(UsageError, match="not a job"):
        asyncio.run(pool.run_async(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", ["cancel", "timeout"])
def test_who_cancels_a_task_ends_its_sandbox(level: str, stop: str) -> None:
    with Pool(policy_of(level), warm=1, at_once=1) as pool:

        async def work() -> None:
            if stop == "timeout":
                await asyncio.wait_for(pool.run_async(_loop), 0.5)
            task = asyncio.create_task(pool.run_async(_loop))
            while not pool._occupancy.visits():
                await asyncio.sleep(0.01)
            task.cancel()
            await task

        with pytest.raises((asyncio.CancelledError, CancelledError, asyncio.TimeoutError)):
            asyncio.run(work())
        eventually(lambda: not pool._occupancy.occupants)
        assert pool.call(_double, 3) == 6  # its place is free


def test_ctrl_c_in_a_loop_ends_what_is_awaited(level: str) -> None:
    def interrupt(pool: Pool) -> None:
        eventually(lambda: pool._occupancy.visits())
        os.kill(os.getpid(), signal.SIGINT)

    with Pool(policy_of(level), warm=1, at_once=2) as pool:
        killer = threading.Thread(target=interrupt, args=(pool,))

        async def work() -> None:
            waiting = asyncio.gather(*pool.submit_many([_loop] * 4))
            await asyncio.sleep(0)  # they wait from now on: a task that is cancelled before it began never waited
            killer.start()
            await waiting

        with pytest.raises(KeyboardInterrupt):
            asyncio.run(work())
        killer.join(30)
        eventually(lambda: not pool._occupancy.occupants and not pool._queue._served)


def test_a_pool_that_closes_is_told_where_its_jobs_are_awaited(level: str) -> None:
    async def work() -> list[object]:
        async with Pool(policy_of(level), warm=1, at_once=1) as pool:
            tasks = [asyncio.create_task(pool.run_async(_loop)) for _ in range(3)]
            while not pool._occupancy.visits():
                await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended, *refused = asyncio.run(work())
    assert isinstance(ended, CallError) and "KILLED_KILL" in str(ended)
    assert all(isinstance(each, UsageError) and "closed" in str(each) for each in refused)


def test_closing_does_not_block_the_loop(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> bool:
        ticked = asyncio.Event()
        async with Pool(policy_of(level), warm=1) as pool:
            close: Callable[[], str] = pool._warm.close
            monkeypatch.setattr(pool._warm, "close", lambda: time.sleep(0.3) or close())
            asyncio.get_running_loop().call_later(0.05, ticked.set)
        return ticked.is_set()

    assert asyncio.run(work())
