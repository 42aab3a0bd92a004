"""Runs on Windows, or under Wine: attacks on the process level and what it tells, all in one interpreter.

``python windows_checks.py SOURCES [NAME…]`` prints a line for each check and exits with 1 if one fails. What a system
takes and does not hold is found out by the package itself; checks ask it, and say «pending» of what can't be shown.
"""

import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, sys.argv[1])

import windows_imports

from ringfence.backends import conformance
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box
from ringfence.engine.pool import Pool
from ringfence.engine.run import backend_for, run
from ringfence.errors import CheckpointError, FileError, SetupError, UnavailableError, UsageError
from ringfence.manager.config import SandboxConfig
from ringfence.manager.manager import SandboxManager
from ringfence.model.job import Job
from ringfence.model.outcome import STATUS_OF, Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.windows import job_limits
from ringfence.windows.host import look
from ringfence.windows.job_object import JobObject

CHECKS, BESIDE = {}, set()
PRINTING = threading.Lock()
PYTHON = (sys.executable, "-I", "-S", "-c")
PATIENCE_S, HANGS_S = 120, 400
HELD = look()
PLACE = os.path.join(os.environ["TEMP"], f"ringfence-tests-{os.urandom(8).hex()}")


class Pending(Exception):
    """It can't be shown on this system."""


def check(function):
    CHECKS[function.__name__] = function
    return function


def beside(function):
    """One that does not touch this process' environment and handles, and runs beside the others."""
    BESIDE.add(function.__name__)
    return check(function)


def ran(code: str, *words: str, job: dict | None = None, **policy: object) -> Outcome:
    asked = {"isolation": "process", "wall_time_s": PATIENCE_S, "allow_partial": True} | policy
    return run(Job(argv=(*PYTHON, code, *words), **(job or {})), SandboxPolicy.from_dict(asked))


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def true(what: object, why: object = "") -> None:
    if not what:
        raise AssertionError(f"not so: {why!r}")


# ---- what a job is given


@check
def input_output_folder_and_environment() -> None:
    os.environ["RINGFENCE_CANARY"] = "1"
    outcome = ran(
        "import json, os, sys; os.write(3, b'told'); "
        "print(json.dumps([os.getcwd(), dict(os.environ), len(sys.stdin.buffer.read()), open('a/b').read()]));"
        "print('x', file=sys.stderr); sys.exit(3)",
        job={"stdin": b"i" * 300_000, "channel": True, "files": {"a/b": b"content"}, "environment": {"Own": "1"}},
    )
    del os.environ["RINGFENCE_CANARY"]
    equal((outcome.rc, outcome.message, outcome.stderr), (3, b"told", b"x\r\n"))
    folder, variables, count, content = json.loads(outcome.stdout)
    equal((count, content, variables["OWN"]), (300_000, "content", "1"))
    true("RINGFENCE_CANARY" not in variables and "ringfence-" in folder and not os.path.exists(folder), folder)
    true(variables["TEMP"].startswith(os.path.dirname(folder)), variables["TEMP"])


@check
def arguments_arrive_as_they_are() -> None:
    words = ["", " ", "a b", '"', "\\", 'a\\"b', "\\\\ \\", "%PATH%", "^&|<>", "é\u4e2d", "a\tb", "--x='y'", "*"]
    outcome = ran("import json, sys; sys.stdout.buffer.write(json.dumps(sys.argv[1:]).encode())", *words)
    equal(json.loads(outcome.stdout), words)


@check
def a_program_is_found_in_the_path_and_no_batch_file_is_run() -> None:
    equal(run(["cmd.exe", "/d", "/c", "echo hi"], _plain()).stdout.strip(), b"hi")
    for argv, error in ((["nosuchprogram"], SetupError), (["a.bat"], UsageError), (["x.CMD. "], UsageError)):
        try:
            run(argv, _plain())
        except error:
            continue
        raise AssertionError(f"{argv} ran")


def _plain() -> SandboxPolicy:
    return SandboxPolicy.from_dict({"isolation": "process", "wall_time_s": PATIENCE_S, "allow_partial": True})


# ---- what is held


_CHILD = """
import subprocess, sys, time
code = ("import os, sys, time; open(sys.argv[1], 'w').close()\\n"
        "while not os.path.exists(sys.argv[3]): time.sleep(0.05)\\nopen(sys.argv[2], 'w').close()")
subprocess.Popen([sys.executable, '-I', '-S', '-c', code, *sys.argv[1:4]], creationflags=8)
import os
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
{after}
"""


@check
def nothing_outlives_a_job() -> None:
    """With the control: the same detached child, without a job, outlives its parent, and does what it is to do."""
    rounds = {name: [os.path.join(_folder(), f"{name}-{part}") for part in ("begun", "late", "go")]
              for name in ("control", "end", "deadline")}  # fmt: skip
    led = [threading.Thread(target=_lead, args=(name, rounds[name])) for name in rounds]
    for thread in led:
        thread.start()
    for thread in led:
        thread.join()
    true(all(os.path.exists(begun) for begun, _, _ in rounds.values()), "one has not begun")
    since = time.monotonic()
    for _, _, go in rounds.values():
        open(go, "w").close()
    true(_appears(rounds["control"][1], PATIENCE_S), "the control shows nothing")
    NEEDED_S.append(time.monotonic() - since)
    time.sleep(_settled_s())
    equal({name for name, (_, late, _) in rounds.items() if os.path.exists(late)}, {"control"})


NEEDED_S = []
"""How long what outlives a job takes to show itself, as the control has told."""


def _settled_s() -> float:
    return 1 + 3 * max(NEEDED_S, default=1)


def _lead(name: str, places: list[str]) -> None:
    """A deadline that comes before the child has begun shows nothing."""
    if name == "control":
        subprocess.run([*PYTHON, _CHILD.format(after=""), *places], check=True)
    elif name == "end":
        ran(_CHILD.format(after=""), *places)
    else:
        for wall_time_s in (6, 25, 100):
            if not os.path.exists(places[0]):
                ran(_CHILD.format(after="time.sleep(300)"), *places, wall_time_s=wall_time_s)


@check
def nobody_leaves_the_job_object() -> None:
    code = ("import subprocess, sys\nbreakaway = 0x01000000\n"
            "try: subprocess.Popen([sys.executable, '-c', ''], creationflags=breakaway).wait()\n"
            "except OSError as error: print('refused', error.winerror)\nelse: print('ESCAPED')")  # fmt: skip
    outcome = ran(code)
    equal(outcome.stdout.strip(), b"refused 5")


_CALLER = """
import sys
sys.path.insert(0, sys.argv[1])
from ringfence.engine.run import run
from ringfence.model.policy import SandboxPolicy
inner = ("import os, sys, time; open(sys.argv[1], 'w').close()\\n"
         "while not os.path.exists(sys.argv[3]): time.sleep(0.05)\\nopen(sys.argv[2], 'w').close()")
asked = {'isolation': 'process', 'allow_partial': True, 'wall_time_s': 600}
run([sys.executable, '-I', '-S', '-c', inner, *sys.argv[2:]], SandboxPolicy.from_dict(asked))
"""
KILLED = [os.path.join(PLACE, f"killed-{part}") for part in ("begun", "late", "go")]
CALLER = []


def start_caller() -> None:
    """It takes long to load everything: it begins before the other checks."""
    _folder()
    CALLER.append(subprocess.Popen([sys.executable, "-I", "-c", _CALLER, sys.argv[1], *KILLED]))


@check
def who_is_killed_takes_the_job_along() -> None:
    """The caller has no time for anything: the last handle of the job object is closed by the kernel. Its control is
    that of nothing_outlives_a_job."""
    begun, late, go = KILLED
    if not CALLER:
        start_caller()
    true(_appears(begun, PATIENCE_S), "it never began")
    CALLER[0].kill()
    CALLER[0].wait()
    time.sleep(0.5)
    open(go, "w").close()
    time.sleep(_settled_s())
    true(not os.path.exists(late), "the job outlived its caller")


_TREE = """
import subprocess, sys, time
kids = [subprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[1]]) for _ in range(int(sys.argv[2]))]
time.sleep(20)
print('ESCAPED' if all(kid.poll() is None for kid in kids) else ''); sys.exit(1)
"""


@check
def memory_of_the_tree_is_bounded() -> None:
    outcome = ran(_TREE, "import time; kept = bytearray(90 << 20); time.sleep(60)", "3", mem_bytes=200 << 20)
    equal((str(outcome.status), b"ESCAPED" in outcome.stdout), ("MEM_LIMIT", False))
    equal([str(each) for each in outcome.enforced["memory"].by], ["job_object" if HELD.memory else "watchdog"])


@check
def the_number_of_processes_is_bounded() -> None:
    outcome = ran(_TREE, "import time; time.sleep(60)", "6", pids_max=3)
    equal((str(outcome.status), b"ESCAPED" in outcome.stdout), ("PIDS_LIMIT", False))


@check
def processor_time_of_the_tree_is_bounded() -> None:
    if not HELD.times:
        raise Pending("the processor times of other processes can't be read here")
    outcome = ran(_TREE, "while True: pass", "2", cpu_time_s=1)
    equal((str(outcome.status), outcome.rc), ("CPU_LIMIT", 152))


@check
def handles_are_bounded() -> None:
    if not HELD.handles:
        raise Pending("open handles are not counted here")
    outcome = ran("import os, time\nkept = [os.open('NUL', 0) for _ in range(2000)]\ntime.sleep(20)\nprint('ESCAPED')",
                  nofile=512)  # fmt: skip
    equal((str(outcome.status), outcome.stdout), ("NOFILE_LIMIT", b""))


@check
def output_is_cut() -> None:
    outcome = ran("print('x' * 500_000)", output_bytes=1000)
    true(len(outcome.stdout) < 1100 and b"TRUNCATED" in outcome.stdout and outcome.limits_hit == ("output",), outcome)


@check
def no_handle_is_inherited_but_what_is_named() -> None:
    """With the control: without a list a child has the inheritable handle."""
    import msvcrt

    path = os.path.join(_folder(), "bait")
    with open(path, "w") as file:
        file.write("RINGFENCE_BAIT")
    place = os.open(path, os.O_RDONLY)
    handle = msvcrt.get_osfhandle(place)
    os.set_handle_inheritable(handle, True)
    code = ("import msvcrt, os, sys\ntry: place = msvcrt.open_osfhandle(int(sys.argv[1]), os.O_RDONLY)\n"
            "except OSError: sys.exit(0)\ntry: text = os.pread(place, 99, 0) if hasattr(os, 'pread') else "
            "os.read(place, 99)\nexcept OSError: sys.exit(0)\nprint('ESCAPED' if b'BAIT' in text else '')")  # fmt: skip
    control = subprocess.run([*PYTHON, code, str(handle)], capture_output=True, close_fds=False, check=False)
    true(b"ESCAPED" in control.stdout, "the control shows nothing")
    os.lseek(place, 0, 0)
    outcome = ran(code, str(handle))
    os.close(place)
    true(b"ESCAPED" not in outcome.stdout, outcome)


@check
def a_crash_has_its_status_in_the_reason() -> None:
    code = "import ctypes; ctypes.WinDLL('kernel32').TerminateProcess(ctypes.c_void_p(-1), ctypes.c_uint32(0xC0000005))"
    outcome = ran(code)
    equal((str(outcome.status), outcome.rc), ("CRASHED", 139))
    true("0xC0000005" in outcome.reason, outcome.reason)


@check
def privileges_are_gone() -> None:
    if not HELD.token:
        raise Pending("a token keeps its privileges here")
    code = f"import sys; sys.path.insert(0, {sys.argv[1]!r})\nfrom ringfence.cli.hostile import privileges\n" \
           "print(privileges())"  # fmt: skip
    equal(int(ran(code).stdout) <= 1, True)


@check
def the_limits_of_a_job_are_read_back() -> None:
    """What was set is what Windows says; feeding the messages is a test of any system (tests/unit/windows)."""
    job = JobObject()
    try:
        wanted = job_limits.job_limits({"memory": 1 << 28, "pids": 7, "cpu_time": 5}, 2)
        job.hold(wanted)
        if not HELD.tells:
            raise Pending("limits are taken and can't be read back here")
        true(wanted.is_held_by(job.limits()), "others were read")
        equal(job.ui(), job_limits.ALL_UI)
    finally:
        job.close()


@check
def what_is_not_held_is_refused_or_said() -> None:
    asked = {"isolation": "process", "hidden_paths": [r"C:\Windows"], "network": "none"}
    try:
        run([*PYTHON, "print(1)"], SandboxPolicy.from_dict(asked))
    except UnavailableError as error:
        true({"hidden_paths", "network"} <= set(error.missing), error.missing)
    else:
        raise AssertionError("it ran")
    outcome = ran("print(1)", **asked)
    true(outcome.partial and not outcome.enforced["hidden_paths"].applied, outcome.enforced)
    true(outcome.reason.startswith("PARTIAL_ENFORCEMENT") and not outcome.enforced["network"].applied, outcome.reason)


@check
def low_integrity_holds_what_may_be_written() -> None:
    """With the control: the same job without it writes beside."""
    if not HELD.integrity:
        raise Pending("integrity labels are taken and not held here")
    from ringfence.windows import integrity

    inside, beside = (os.path.join(_folder(), name) for name in ("labelled", "unlabelled"))
    os.mkdir(inside)
    os.mkdir(beside)
    code = ("import os, sys\nfor place in sys.argv[1:]:\n try: open(os.path.join(place, 'x'), 'w').close()\n"
            " except OSError: pass\nopen('own', 'w').close()")  # fmt: skip
    ran(code, beside)
    equal(os.listdir(beside), ["x"])
    os.remove(os.path.join(beside, "x"))
    try:
        ran("", writable_paths=[inside], allow_partial=False)
    except UnavailableError as error:
        true("icacls" in error.hint, error.hint)
    integrity.label_tree(inside)
    outcome = ran(code, inside, beside, writable_paths=[inside])
    equal((outcome.rc, os.listdir(inside), os.listdir(beside)), (0, ["x"], []))


@beside
def make_works_in_a_windows_shell() -> None:
    """``make run`` is the demonstration there too; with PYTHON set nothing is installed. A word that is no target is
    refused."""
    here = os.path.dirname(os.path.abspath(__file__))
    make = os.path.normpath(os.path.join(here, "..", "..", "make.cmd"))
    stand_in = f'"{sys.executable}" -B "{os.path.join(here, "windows_main.py")}" "{os.path.abspath(sys.argv[1])}"'
    environment = os.environ | {"PYTHON": stand_in, "PYTHONIOENCODING": "utf-8"}
    done, wrong = (subprocess.run(["cmd.exe", "/d", "/c", make, word], env=environment, capture_output=True,
                                  stdin=subprocess.DEVNULL, check=False) for word in ("run", "fly"))  # fmt: skip
    told = done.stdout.decode("utf-8", "replace")
    true(done.returncode == 0 and "isolation process" in told, (told[-600:], done.stderr[-1500:]))
    true(wrong.returncode == 2 and b"no target fly" in wrong.stderr, wrong)


@beside
def the_commands_of_the_page_work() -> None:
    """Those of docs/reference/platforms.md, as they stand there; pip and its index are not here."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "..", "docs", "reference", "platforms.md"), encoding="utf-8") as page:
        lines = [line.split()[4:] for line in page if line.startswith("py -P -m ringfence ")]
    equal([words[0] for words in lines], ["probe", "demo", "run"])
    folder = os.path.join(_folder(), "page")
    os.mkdir(folder)
    _write(os.path.join(folder, "script.py"), "print(6 * 7)")
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    main = (sys.executable, "-B", os.path.join(here, "windows_main.py"), os.path.abspath(sys.argv[1]))
    environment = os.environ | {"PATH": path, "PYTHONIOENCODING": "utf-8"}
    refused = []
    for words, printed in zip(lines, (b"strict", b"isolation process", b"42"), strict=True):
        done = subprocess.run([*main, "-m", "ringfence", *words], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
        if done.returncode and b"use Windows, not Wine" in done.stdout + done.stderr:
            refused.append(words[0])
            continue
        true(done.returncode == 0 and printed in done.stdout, (words, done.stdout[-600:], done.stderr[-1500:]))
    if refused:
        raise Pending(f"Wine can't enforce a default policy, and says so: {refused}")


# ---- boxes


@beside
def files_come_into_a_box_and_out_of_it() -> None:
    with Box(_plain()) as box:
        box.put("a/b.txt", b"one\r\n\x1atwo")
        outcome = box.run([*PYTHON, "open('a/b.txt', 'ab').write(b'!')"])
        equal((outcome.rc, box.get("a/b.txt")), (0, b"one\r\n\x1atwo!"))
        for name, error in (("none.txt", FileError), ("a.txt:hidden", UsageError), ("NUL", UsageError)):
            try:
                box.get(name)
            except error:
                continue
            raise AssertionError(f"{name} was read")


@beside
def a_task_to_start_from_is_written() -> None:
    from ringfence.proctor.template import FILES, write_task

    task = os.path.join(_folder(), "task")
    write_task(task)
    for name, text in FILES.items():
        equal(_read(os.path.join(task, name)), text)


@beside
def a_pool_is_refused_by_name() -> None:
    try:
        Pool(_plain())
    except UnavailableError as error:
        true("pools need Linux" in str(error) and error.hint, error)
    else:
        raise AssertionError("it was made")


# ---- undo


def _workspace(name: str) -> tuple[str, Transaction]:
    base = os.path.join(_folder(), f"{name}-base")
    os.makedirs(os.path.join(base, "sub"))
    _write(os.path.join(base, "a.txt"), "one")
    _write(os.path.join(base, "sub", "b.txt"), "two")
    return base, Transaction.create(os.path.join(_folder(), f"{name}-store"), [base], kind="snapshot")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _told(changes: object) -> dict[str, str]:
    return {change.path.rsplit("-base/")[1]: str(change.kind) for change in changes}


def _in(transaction: Transaction, code: str, *words: str) -> Outcome:
    return run([*PYTHON, code, *words], _plain(), transaction=transaction)


@beside
def what_a_job_changed_is_undone_or_carried_over() -> None:
    base, transaction = _workspace("undo")
    first = _in(transaction, "import os; open('a.txt', 'w').write('new'); open('c.txt', 'w'); os.remove('sub/b.txt')")
    equal(_told(first.changes), {"a.txt": "modified", "c.txt": "added", "sub/b.txt": "deleted"})
    kept = transaction.create_checkpoint("first")
    _in(transaction, "import os; os.rename('a.txt', 'a'); os.rename('a', 'A.TXT'); os.makedirs('x/y'); "
        "open('x/y/z', 'w').write('deep')")  # fmt: skip
    true({"A.TXT", "x/y/z"} <= set(_told(transaction.changes())), transaction.changes())
    transaction.rollback(kept.checkpoint_id)
    equal(_told(transaction.changes()), {"a.txt": "modified", "c.txt": "added", "sub/b.txt": "deleted"})
    equal((_read(os.path.join(base, "a.txt")), os.listdir(os.path.join(base, "sub"))), ("one", ["b.txt"]))
    transaction.commit()
    equal((_read(os.path.join(base, "a.txt")), os.listdir(os.path.join(base, "sub"))), ("new", []))
    _in(transaction, "import os; os.rename('a.txt', 'a'); os.rename('a', 'A.TXT')")
    transaction.commit()
    equal(sorted(os.listdir(base)), ["A.TXT", "c.txt", "sub"])
    transaction.close()


@beside
def a_deep_path_is_carried_over() -> None:
    base, transaction = _workspace("deep")
    code = ("import os\nplace = '\\\\\\\\?\\\\' + os.getcwd()\n"
            "for _ in range(12):\n place += '\\\\' + 'd' * 40\n os.mkdir(place)\n"
            "open(place + '\\\\file', 'w').write('deep')")  # fmt: skip
    outcome = _in(transaction, code)
    equal(outcome.stderr, b"")
    transaction.commit()
    place = "\\\\?\\" + os.path.join(base, *["d" * 40] * 12, "file")
    equal(_read(place), "deep")
    transaction.close()


@beside
def names_that_mean_something_else_are_not_carried_over() -> None:
    base, transaction = _workspace("names")
    code = ("import os, sys\nfor name in ('NUL', 'a.txt.', 'a.txt ', 'com1.log'):\n"
            " try: open('\\\\\\\\?\\\\' + os.getcwd() + '\\\\' + name, 'w').write('evil')\n"
            " except OSError as error: print(name, error)\n"
            "open('fine.txt', 'w').close()")  # fmt: skip
    outcome = _in(transaction, code)
    made = set(os.listdir("\\\\?\\" + os.path.normpath(transaction.place(base))))
    odd = made - {"a.txt", "fine.txt", "sub"}
    true("fine.txt" in _told(outcome.changes) and not odd & set(_told(outcome.changes)), outcome.changes)
    if not odd:
        raise Pending(f"no such name can be made here: {outcome.stdout!r}")
    true(not outcome.changes_complete, "nobody was told")
    try:
        transaction.commit()
    except CheckpointError:
        pass
    else:
        raise AssertionError("it was committed")
    equal(_read(os.path.join(base, "a.txt")), "one")
    transaction.close()


@beside
def streams_beside_a_file_are_not_carried_over() -> None:
    base, transaction = _workspace("streams")
    outcome = _in(transaction, "open('a.txt:hidden', 'w').write('evil'); open('a.txt', 'a').write('!')")
    if outcome.rc:
        raise Pending(f"there are no streams here: {outcome.stderr[-100:]!r}")
    try:
        transaction.commit()
    except CheckpointError:
        transaction.close()
        raise Pending("a colon is a plain sign here, and what has one in its name was refused") from None
    equal(_read(os.path.join(base, "a.txt")), "one!")
    true(not os.path.exists(os.path.join(base, "a.txt:hidden")), "the stream came along")
    transaction.close()


@beside
def no_junction_is_followed() -> None:
    """With the control: Windows itself follows it."""
    outside = os.path.join(_folder(), "outside")
    os.mkdir(outside)
    _write(os.path.join(outside, "secret"), "secret")
    base, transaction = _workspace("junction")
    way = os.path.join(os.path.normpath(transaction.place(base)), "way")
    made = subprocess.run(["cmd.exe", "/d", "/c", "mklink", "/J", way, outside], capture_output=True, check=False)
    if made.returncode or not os.path.exists(os.path.join(way, "secret")):
        transaction.close()
        raise Pending(f"no junction can be made here: {made.stdout + made.stderr!r}")
    told = _told(transaction.changes())
    true("way/secret" not in told, told)
    transaction.commit()
    true(not os.path.lexists(os.path.join(base, "way")), "it was carried over")
    transaction.discard()
    equal(os.listdir(outside), ["secret"])
    transaction.close()


@beside
def the_manager_works_as_it_is() -> None:
    """Its default blocks C:\\Windows, which nobody can hide here: that is said."""
    workspace = os.path.join(_folder(), "managed")
    os.mkdir(workspace)
    _write(os.path.join(workspace, "a.txt"), "one")
    with SandboxManager(SandboxConfig(allowed_paths=[workspace])) as manager:
        context = manager.create_sandbox()
        outcome = manager.run(context, [*PYTHON, "open('a.txt', 'w').write('changed')"])
        equal((str(outcome.status), outcome.partial), ("OK", True))
        true(not outcome.outcome.enforced["hidden_paths"].applied, outcome.outcome.enforced)
        equal((_read(os.path.join(workspace, "a.txt")), len(manager.changes(context))), ("one", 1))
        manager.commit(context)
        equal(_read(os.path.join(workspace, "a.txt")), "changed")
        manager.destroy_sandbox(context.sandbox_id)
    try:
        with SandboxManager(SandboxConfig(allow_partial=False)) as manager:
            manager.run(manager.create_sandbox(), [*PYTHON, ""])
    except UnavailableError as error:
        true("hidden_paths" in error.missing, error.missing)
    else:
        raise AssertionError("it ran")


def _conformance(one: conformance.Check) -> None:
    """The attack, and its control without a sandbox."""
    capability = next((name for name, status in STATUS_OF.items() if status is one.expect), "")
    policy = SandboxPolicy.from_dict(_plain().to_dict() | dict(one.policy))
    lacking = [lack for lack in backend_for(policy.isolation).lacks(policy) if lack.capability == capability]
    if lacking:
        raise Pending(f"{capability} is not held here: missing {lacking[0].missing}")
    finding = conformance.perform_one(run, policy.isolation, one, _plain())
    true(finding.held and finding.proven, finding.problem)


CHECKS |= {f"conformance, {one.name}": partial(_conformance, one) for one in conformance.checks_here()}


@check
def every_module_imports() -> None:
    equal(windows_imports.main(sys.argv[1]), 0)


def _folder() -> str:
    os.makedirs(PLACE, exist_ok=True)
    return PLACE


def _appears(path: str, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if os.path.exists(path):
            return True
        time.sleep(0.05)
    return False


def _performed(name: str) -> bool:
    """Whether it failed."""
    begun, failed = time.monotonic(), ""
    faulthandler.dump_traceback_later(HANGS_S, exit=True, file=sys.stdout)
    try:
        CHECKS[name]()
        told = "ok"
    except Pending as why:
        told = f"pending  ({why})"
    except Exception as error:
        failed = traceback.format_exc()
        told = f"FAILED  {error!r}"
    with PRINTING:
        print(f"{failed}{time.monotonic() - begun:6.1f} s  {name}: {told}", flush=True)
    return bool(failed)


def main(chosen: list[str]) -> int:
    """Two at a time: those of jobs, and beside them those of files. Two come last, alone."""
    if not chosen:
        start_caller()
    last = (who_is_killed_takes_the_job_along.__name__, every_module_imports.__name__)
    asked = [name for name in CHECKS if name in chosen or not chosen]
    jobs = [name for name in asked if name not in BESIDE and name not in last]
    failed = []
    other = threading.Thread(target=lambda: failed.extend(map(_performed, [name for name in asked if name in BESIDE])))
    other.start()
    failed += map(_performed, jobs)
    other.join()
    failed += map(_performed, [name for name in last if name in asked])
    faulthandler.cancel_dump_traceback_later()
    from ringfence.windows.removal import remove_tree

    try:
        remove_tree(_folder())
    except OSError as error:
        print(f"left behind: {error}")
        failed.append(True)
    print(f"{sum(failed)} of {len(asked)} failed")
    return 0 if asked and not any(failed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
