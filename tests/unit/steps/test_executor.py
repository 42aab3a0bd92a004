"""The steps between fork and exec: in order, by name, with exactly the descriptors that belong there."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.steps import executor as plan

pytestmark = [pytest.mark.system, pytest.mark.privileges]


def in_child(body) -> bytes:
    """What ``body(write)`` says in a forked child, which then ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            body(lambda text, to=writer: os.write(to, text.encode()))
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


def test_the_step_that_failed_is_named_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # so that the directory is put back
    with pytest.raises(plan.StepFailed) as caught:
        plan.execute([("chdir", "/"), ("chdir", "/nowhere/at/all"), ("exec", ["true"], {})])
    assert (caught.value.step, caught.value.errno) == ("chdir", 2)
    assert caught.value.problem == "No such file or directory: /nowhere/at/all"


def test_an_unknown_step_is_a_failure_not_a_skip() -> None:
    with pytest.raises(plan.StepFailed) as caught:
        plan.execute([("levitate",)])
    assert caught.value.step == "levitate" and "KeyError" in caught.value.problem


def test_a_limit_that_cannot_be_set_names_itself() -> None:
    with pytest.raises(plan.StepFailed) as caught:
        plan.execute([("rlimit", "RLIMIT_NOFILE", 20, 10)])
    assert caught.value.step == "rlimit RLIMIT_NOFILE"


def test_a_program_that_is_not_there_is_named_not_the_last_folder_tried() -> None:
    with pytest.raises(plan.StepFailed) as caught:
        plan.execute([("exec", ["no-such-program"], {"PATH": "/usr/bin:/bin"})])
    assert (caught.value.step, caught.value.errno) == ("exec", 2)
    assert caught.value.problem.endswith(": no-such-program")


def test_a_leader_that_is_gone_takes_the_job_with_it_before_it_starts() -> None:
    said = in_child(lambda write: plan.execute([("die with leader", 1 << 22)]))
    assert b"StepFailed" in said


def test_steps_do_what_they_say() -> None:
    def body(write) -> None:
        plan.execute([("setsid",), ("chdir", "/"), ("umask", 0o022), ("reset signals",), ("no new privileges",)])
        status = Path("/proc/self/status").read_text() if sys.platform == "linux" else "NoNewPrivs:\t1"
        seen = os.getsid(0) == os.getpid(), os.getcwd(), oct(os.umask(0)), "NoNewPrivs:\t1" in status
        write(" ".join(map(str, seen)))

    assert in_child(body) == b"True / 0o22 True"


def test_a_program_starts_with_default_signals() -> None:
    def body(write) -> None:
        import signal

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        plan.execute([("reset signals",)])
        write(f"{signal.getsignal(signal.SIGPIPE)!r} {signal.getsignal(signal.SIGUSR2)!r} ")
        write(repr(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

    assert in_child(body).decode() == "<Handlers.SIG_DFL: 0> <Handlers.SIG_DFL: 0> set()"


@pytest.mark.parametrize("order", ((0, 1, 2), (2, 1, 0), (1, 2, 0, 3), (1, 0)))
def test_descriptors_land_in_their_places_whatever_their_numbers_were(order: tuple[int, ...]) -> None:
    """Sources that sit on each other's targets must not overwrite one another."""

    def body(write) -> None:
        pipes = [os.pipe() for _ in order]
        for number, (reader, _) in enumerate(pipes):
            high = plan.duplicate(reader, 50 + number)
            os.write(pipes[number][1], bytes((65 + number,)))
            os.close(reader)
            pipes[number] = (high, pipes[number][1])
        told = plan.duplicate(write.__defaults__[0], 90)
        for place, number in enumerate(order):
            os.dup2(pipes[number][0], place)
        (kept,) = plan.place_descriptors([order.index(number) for number in range(len(order))], [told])
        letters = b"".join(os.read(place, 1) for place in range(len(order)))
        still_open = sorted(map(int, os.listdir("/dev/fd")))[:-1]
        write(f"{letters.decode()} {kept} {still_open}", kept)

    letters, kept, still_open = in_child(body).decode().split(" ", 2)
    assert letters == "ABCD"[: len(order)] and int(kept) == len(order)
    assert still_open == str(list(range(len(order) + 1)))


def test_a_descriptor_above_a_lowered_limit_is_closed_too() -> None:
    def body(write) -> None:
        secret = os.open("/etc/passwd", os.O_RDONLY)
        os.dup2(secret, 200)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        os.closerange(150, os.sysconf("SC_OPEN_MAX"))
        control = os.fstat(200).st_size > 0  # the limit alone does not reach it
        plan.close_from(150)
        try:
            os.fstat(200)
            write(f"{control} still open")
        except OSError:
            write(f"{control} closed")

    assert in_child(body) == b"True closed"


def test_everything_is_closed_where_no_folder_lists_the_descriptors() -> None:
    def body(write) -> None:
        os.listdir = lambda *_: (_ for _ in ()).throw(OSError())  # type: ignore[assignment]
        high = plan.duplicate(0, 900)
        plan.close_from(900)
        try:
            os.fstat(high)
            write("open")
        except OSError:
            write("closed")

    assert in_child(body) == b"closed"


def test_a_job_inherits_nothing_but_its_streams() -> None:
    code = (
        "import os, resource; os.dup2(os.open('/etc/passwd', os.O_RDONLY), 900); os.set_inheritable(900, True);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]));"
        "import sys; from ringfence.roles import spawner; from ringfence import run; spawner.fork_early();"
        "sys.stdout.buffer.write(run(['sh', '-c', 'ls /dev/fd/ | tr \"\\\\n\" \" \"']).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1", "2", "3"]  # 3 is the directory that ls has open


@pytest.mark.skipif(sys.platform != "linux", reason="a step of Linux")
def test_a_step_that_fails_says_which_part_of_the_building_it_was_about() -> None:
    with pytest.raises(plan.StepFailed) as caught:
        plan.execute([("attach", "nowhere")])
    assert caught.value.step == "attach nowhere"
