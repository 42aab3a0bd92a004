"""Python jobs in a forked interpreter: the same as ``python FILE``, and nothing of one job in the next."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.unit.python_jobs.forked_python import ENVIRONMENT, Ended, run_forked, run_python
from tests.unit.python_jobs.python_programs import PROGRAMS, TOLD_OTHERWISE, WITH_SOURCE_LINES, Program

from ringfence.python_jobs.job import Surroundings, source_job
from ringfence.python_jobs.reply import ReplyKind, read_reply

pytestmark = pytest.mark.system


def _folder(place: Path, program: Program) -> Path:
    place.mkdir()
    source = program.source.encode() if isinstance(program.source, str) else program.source
    (place / "program.py").write_bytes(source)
    (place / "neighbour.py").write_text("VALUE = 42\nfile = None\n")
    return place


def _seen(ended: Ended, folder: str) -> dict[str, object]:
    """What a user sees, without the name of the directory and the addresses of objects."""
    left = Path(folder) / "out.txt"
    stdout, stderr = (text.replace(folder.encode(), b"HERE") for text in (ended.stdout, ended.stderr))
    return {
        "status": ended.status,
        "stdout": stdout,
        "stderr": re.sub(rb"0x[0-9a-f]+", b"0x_", stderr),
        "file": left.read_bytes() if left.exists() else None,
    }


def _expected(program: Program, folder: Path) -> dict[str, object]:
    ended = run_python(folder / "program.py", program.arguments, stdin=program.stdin, cwd=folder)
    return _seen(ended, str(folder))


def _ours(program: Program, folder: Path, name: str) -> dict[str, object]:
    job = source_job((folder / "program.py").read_bytes(), name=name, arguments=program.arguments,
                     surroundings=Surroundings(path=(str(folder),)))  # fmt: skip
    # Half of all runs in a process that has rehearsed, as those of a pool have, the others straight after a fork.
    ended = run_forked(job, stdin=program.stdin, cwd=folder, rehearsed=name.startswith(str(folder)))
    return _seen(ended, name.rpartition("/")[0])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_does_the_same_as_under_a_new_interpreter(program: Program, tmp_path: Path) -> None:
    theirs, ours = _folder(tmp_path / "theirs", program), _folder(tmp_path / "ours", program)
    expected = _expected(program, theirs)
    if program.name == "exit huge":  # from 3.12 on an interpreter tells of its own error, left over from the number
        expected["stderr"] = b""
    assert _ours(program, ours, f"{ours}/program.py") == expected


@pytest.mark.parametrize("program", TOLD_OTHERWISE, ids=lambda program: program.name)
def test_a_source_that_can_not_be_decoded_is_a_syntax_error_too(program: Program, tmp_path: Path) -> None:
    theirs, ours = _folder(tmp_path / "theirs", program), _folder(tmp_path / "ours", program)
    made, expected = _ours(program, ours, f"{ours}/program.py"), _expected(program, theirs)
    assert made["status"] == expected["status"] == 1
    assert b"SyntaxError: " in made["stderr"] and b"SyntaxError: " in expected["stderr"]  # type: ignore[operator]


@pytest.mark.parametrize("program", [each for each in PROGRAMS if each.name in WITH_SOURCE_LINES], ids=lambda p: p.name)
def test_the_lines_of_a_source_that_is_in_no_file_are_shown(program: Program, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "theirs", program)
    expected, made = _expected(program, folder), _ours(program, folder, "/nowhere/program.py")
    if program.name == "bad indentation" and sys.version_info < (3, 12):
        expected["stderr"] = expected["stderr"].replace(b"    ^\n", made["stderr"].splitlines(True)[2])  # type: ignore
    assert made == expected


def test_an_exception_is_shown_also_where_that_can_load_nothing_any_more() -> None:
    """Since to show it well Python loads modules, and a job may have used up its descriptors."""
    source = "import builtins, sys\ndef none_left(*_): raise OSError(24, 'Too many open files')\n"
    source += "for name in ('ast', 'tokenize', 'unicodedata'): sys.modules.pop(name, None)\n"
    source += "sys.path_hooks.clear(); sys.meta_path[:] = [type('No', (), {'find_spec': none_left})()]\n"
    source += "def deep(): return 1 + (2 / 0)\ndeep()"
    ended = run_forked(source_job(source))
    told = read_reply(ended.message).raised
    assert told is not None and told.type_name == "ZeroDivisionError"
    assert "in deep" in told.traceback and told.traceback.endswith("ZeroDivisionError: division by zero\n")
    assert b"ZeroDivisionError: division by zero" in ended.stderr


def _told(source: str, **options: object) -> object:
    """The value of a source's last expression."""
    read = read_reply(run_forked(source_job(source, value=True, **options)).message)  # type: ignore[arg-type]
    assert read.kind is ReplyKind.VALUE, (read.problem, read.raised)
    return read.value


def test_the_value_of_the_last_expression_comes_back() -> None:
    assert _told("x = 20\nx + 1; x, {x: 'twenty'}") == (20, {20: "twenty"})
    assert _told("x = 20") is None
    assert _told("") is None
    assert _told("from __future__ import annotations\ndef f(x: nothing): ...\n1") == 1


def test_an_exception_of_a_source_is_printed_and_told() -> None:
    ended = run_forked(source_job("import json\njson.loads('{')", name="<job>"))
    raised = read_reply(ended.message).raised
    assert raised is not None and raised.type_name == "json.decoder.JSONDecodeError"
    assert raised.message.startswith("Expecting property name")
    first = 'Traceback (most recent call last):\n  File "<job>", line 2, in <module>\n    json.loads('
    assert raised.traceback.startswith(first)
    assert raised.traceback == ended.stderr.decode()
    assert ended.status == 1


def test_a_source_that_succeeds_without_a_value_says_nothing() -> None:
    assert run_forked(source_job("print(1)")).message == b""


def test_what_the_job_itself_writes_into_its_channel_is_only_another_value() -> None:
    garbage = run_forked(source_job("import os\nos.write(3, b'garbage')"))
    assert read_reply(garbage.message).kind is ReplyKind.GARBLED
    twice = run_forked(source_job("import os\nos.write(3, b'RFR\\1V\\0\\0\\0\\1' + b'7')\n8", value=True))
    assert read_reply(twice.message).kind is ReplyKind.TRAILING
    instead = run_forked(source_job("import os\nos.write(3, b'RFR\\1V\\0\\0\\0\\1' + b'7')\nos._exit(0)", value=True))
    assert read_reply(instead.message).value == 7
    closed = run_forked(source_job("import os\nos.closerange(3, 99)\n5", value=True))
    assert (read_reply(closed.message).kind, closed.status) == (ReplyKind.NOTHING, 0)


def test_programs_that_the_job_starts_do_not_inherit_its_channel() -> None:
    assert _told("import os\nos.get_inheritable(3)") is False


def test_a_forked_copy_of_the_job_that_comes_to_its_end_sends_no_second_value() -> None:
    assert _told("import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\n'one'") == "one"


def test_jobs_of_one_parent_draw_different_random_numbers_though_the_parent_has_loaded_random() -> None:
    source = "import random, tempfile, uuid\nprint(random.random(), tempfile.mktemp(), uuid.uuid4())"
    ended = run_forked(source_job(source), preload="import random, tempfile\nrandom.seed(1)", count=3)
    drawn = [line.split() for line in ended.stdout.splitlines()]
    assert len(drawn) == 3 and all(len(set(column)) == 3 for column in zip(*drawn, strict=True))


# A generator whose module does not notice forks: numpy's does not, and a fork by a bare system call tells nobody.
GENERATOR = """
import sys, types
made = types.ModuleType({name!r})
made.state = 1
made.seed = lambda: setattr(made, "state", "new")
sys.modules[{name!r}] = made
"""


@pytest.mark.parametrize("name", ("random", "numpy.random"))
def test_global_generators_are_seeded_anew_where_they_are_loaded(name: str) -> None:
    assert _preloaded(f"import sys\nsys.modules[{name!r}].state", GENERATOR.format(name=name)) == "new"


def _preloaded(source: str, preload: str) -> object:
    return read_reply(run_forked(source_job(source, value=True), preload=preload).message).value


def test_what_one_job_leaves_behind_is_not_there_for_the_next() -> None:
    source = """
import builtins, json, os, sys, signal, warnings, atexit
old = (hasattr(builtins, "left"), hasattr(json, "left"), "LEFT" in os.environ, "left" in sys.modules, len(sys.path))
print(old)
builtins.left = json.left = 1; os.environ["LEFT"] = "1"; sys.modules["left"] = os; sys.path.append("x")
"""
    ended = run_forked(source_job(source), preload="import json", count=2)
    first, second = ended.stdout.splitlines()
    assert first == second and first.startswith(b"(False, False, False, False, ")


def test_the_environment_is_the_jobs_and_nothing_of_the_parents() -> None:
    job = source_job("import os, time\n(dict(os.environ), os.popen('env').read(), time.tzname)", value=True)
    ended = run_forked(job, environment={"A": "b", "TZ": "XYZ-5"}, preload="import os\nos.environ['SECRET'] = 'x'")
    environment, seen_by_child, zone = read_reply(ended.message).value  # type: ignore[misc]
    assert environment == {"A": "b", "TZ": "XYZ-5"}
    assert "SECRET" not in seen_by_child and "A=b" in seen_by_child
    assert zone == ("XYZ", "XYZ")


def test_the_command_line_of_the_parent_is_not_the_jobs() -> None:
    argv = _told("import sys\n(sys.argv, sys.orig_argv)", name="<job>", arguments=("x",))
    assert argv == (["<job>", "x"], [sys.executable, "<job>", "x"])


def test_the_search_path_is_the_jobs_then_pythons_then_the_packages() -> None:
    around = Surroundings(path=("/first",), packages=("/last",))
    path = _told("import sys\nsys.path", surroundings=around)
    assert isinstance(path, list) and path[0] == "/first" and path[-1] == "/last" and len(path) > 3


def test_a_folder_that_appears_after_the_parent_looked_for_it_is_searched(tmp_path: Path) -> None:
    late = tmp_path / "late"
    preload = f"import sys\nsys.path_importer_cache[{str(late)!r}] = None"
    late.mkdir()
    (late / "found_late.py").write_text("X = 7")
    job = source_job("import found_late\nfound_late.X", value=True, surroundings=Surroundings(path=(str(late),)))
    assert read_reply(run_forked(job, preload=preload).message).value == 7


def test_only_allowed_modules_are_imported_by_the_jobs_own_code_and_they_import_what_they_need() -> None:
    around = Surroundings(modules=("json", "decimal"))
    assert _told("import json.decoder\nfrom decimal import Decimal\njson.loads('1')", surroundings=around) == 1
    ended = run_forked(source_job("import os", name="<job>", surroundings=around))
    assert read_reply(ended.message).raised.message == "import of 'os' is not allowed here"  # type: ignore[union-attr]
    assert b"ringfence" not in ended.stderr
    assert _told("import os\nos.name") == "posix"


def test_a_job_on_a_terminal_prints_line_by_line() -> None:
    source = "import os, sys\nm, s = os.openpty(); os.dup2(s, 1)"
    assert _told(source + "\nsys.stdout.line_buffering") is False
    preload = "import os\nmain, terminal = os.openpty(); os.dup2(terminal, 1)"
    assert _preloaded("import sys\n(sys.stdout.line_buffering, sys.stdout.isatty())", preload) == (True, True)


def test_closed_streams_are_none_as_python_has_them() -> None:
    preload = "import os\nos.dup2(os.open('/dev/null', os.O_RDWR), 900); os.close(0)"
    assert _preloaded("import sys\nprint('x')\n(sys.stdin, sys.__stdin__)", preload) == (None, None)


STREAMS = """
import io, os, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    told = (stream.name, stream.mode, stream.encoding, stream.errors, stream.seekable(), stream.isatty(),
            stream.line_buffering, stream.newlines, stream.closed, stream is getattr(sys, f"__{stream.name[1:-1]}__"))
    os.write(3, repr(told).encode())
os.write(3, repr((sys.stdin.tell() if sys.stdin.seekable() else None, sys.stdin.read())).encode())
"""


@pytest.mark.parametrize("rehearsed", [False, True])
@pytest.mark.parametrize("redirected", [
    "os.dup2(os.open('/dev/null', os.O_RDONLY), 0)",
    "os.dup2(os.open({file!r}, os.O_RDWR), 0); os.lseek(0, 3, 0)",
    "os.dup2(os.open({file!r}, os.O_RDWR | os.O_APPEND), 1)",
    "os.dup2(os.open('/dev/null', os.O_RDWR), 2)",
    "os.dup2(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY), 1)",
])  # fmt: skip
def test_streams_that_were_made_before_the_fork_are_those_of_a_new_interpreter(
    redirected: str, rehearsed: bool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("some text\n")
    redirected = redirected.format(file=str(tmp_path / "file"))
    (tmp_path / "program.py").write_text(STREAMS)
    again = f"import os\nos.set_inheritable(3, True)\n{redirected}\n"
    again += f"os.execv({sys.executable!r}, ['python', '-X', 'utf8', {str(tmp_path / 'program.py')!r}])"
    fresh, forked = (run_forked(source_job(source), in_fork=in_fork, rehearsed=rehearsed)
                     for source, in_fork in ((again, "pass"), (STREAMS, redirected)))  # fmt: skip
    assert forked.message and forked.message == fresh.message


@pytest.mark.parametrize("own", [{}, {"TZ": "ABC+3"}, {"LC_ALL": "C"}, {"LANG": "C"}, {"LANG": "POSIX"}, {"TZ": ""}])
@pytest.mark.parametrize("usual", [{}, {"TZ": "XYZ-9"}, {"LC_ALL": "POSIX"}, ENVIRONMENT])
def test_an_environment_is_the_jobs_own_whatever_the_process_had_that_was_forked(
    own: dict[str, str], usual: dict[str, str], tmp_path: Path
) -> None:
    # An interpreter that starts where the locale is C sets that one itself.
    look = "import locale, os, time\nos.environ.pop('LC_CTYPE', None)"
    look += "\nprint(sorted(os.environ.items()), time.tzname, locale.setlocale(locale.LC_CTYPE), flush=True)"
    look += "\nos.system('env | grep -v _= | sort')"
    (tmp_path / "program.py").write_text(look)
    environment = {"PATH": "/usr/bin:/bin", **own}
    again = f"import os\nos.execve({sys.executable!r}, ['python', {str(tmp_path / 'program.py')!r}], {environment!r})"
    fresh = run_forked(source_job(again), usual=usual).stdout
    forked = run_forked(source_job(look), environment=environment, usual=usual).stdout
    assert forked and forked == fresh


def test_a_job_finds_nothing_of_this_package_and_may_have_one_of_the_same_name(tmp_path: Path) -> None:
    look = "import sys\n(any('ringfence' in name for name in sys.modules), [str(each) for each in sys.meta_path])"
    (found, finders) = _told(look)  # type: ignore[misc]
    assert not found and not any("ringfence" in each for each in finders)
    assert b"No module named 'ringfence'" in run_forked(source_job("import ringfence.python_jobs")).stderr
    (tmp_path / "ringfence.py").write_text("VALUE = 5")
    assert _told("import ringfence\nringfence.VALUE", surroundings=Surroundings(path=(str(tmp_path),))) == 5


def test_all_modules_of_a_job_are_taken_apart_also_where_it_has_moved_others(tmp_path: Path) -> None:
    class_ = "import os\nclass End:\n    def __init__(self, name): self.name, self.tell = name, os.write\n"
    class_ += "    def __del__(self): self.tell(1, self.name.encode() + b' ')\n"
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(f"{class_}end = End({name!r})\n")
    (tmp_path / "program.py").write_text(f"{class_}import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "import first\nmoved = [name for name in sys.modules if name[0] != '_' and name not in ('sys', 'first')]\n"
        "kept = [(name, sys.modules.pop(name)) for name in moved]\nsys.modules.update(kept)\nimport second\n"
        "end = End('main')\n")  # fmt: skip
    job = source_job((tmp_path / "program.py").read_bytes(), name=str(tmp_path / "program.py"))
    ours, theirs = run_forked(job).stdout.split(), run_python(tmp_path / "program.py").stdout.split()
    assert sorted(ours) == sorted(theirs) == [b"first", b"main", b"second"]


def test_who_imports_a_module_of_ours_after_that_gets_the_same_one_again() -> None:
    again = "from ringfence.python_jobs import job as again, reply; import ringfence.python_jobs.job as third; "
    again += "assert again.unpacked and third is again is interpreter.python_job and reply is interpreter.reply; "
    again += "assert again.__spec__.origin == again.__file__, again.__spec__"
    ended = run_forked(source_job("import sys\nprint('ringfence' in sys.modules)"), in_fork=again)
    assert (ended.stdout, ended.stderr) == (b"False\n", b"")


def test_a_value_that_is_too_large_or_can_not_be_sent_is_told_as_such() -> None:
    small = Surroundings(max_value_bytes=100)
    large = run_forked(source_job("'x' * 1000", value=True, surroundings=small))
    assert read_reply(large.message, max_bytes=100).kind is ReplyKind.TOO_LARGE
    odd = read_reply(run_forked(source_job("[1, object()]", value=True)).message)
    assert odd.kind is ReplyKind.UNSENDABLE and "value[1]: a object" in odd.problem


@pytest.mark.parametrize("name", ("LC_ALL", "LANG", "LC_CTYPE"))
def test_a_locale_that_is_unknown_here_is_no_obstacle(name: str) -> None:
    ended = run_forked(source_job("print('ä')"), environment={**ENVIRONMENT, name: "xx_YY.nothing"})
    assert (ended.stdout, ended.status) == ("ä\n".encode(), 0)
