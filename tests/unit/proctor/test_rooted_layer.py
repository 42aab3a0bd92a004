"""Which of an agent's changes in an image are graded: a decision over names."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ringfence.checkpoint.entry import DELETED, FIFO, FILE, FOLDER, LINK, Entry
from ringfence.model.record import replace
from ringfence.proctor.rooted import layer as layers
from ringfence.proctor.rooted import system_files
from ringfence.proctor.rooted.layer import Content, SiftedLayer, sift
from ringfence.proctor.task import Grader, Root, Task
from ringfence.proctor.task_policy import TaskPolicy

CHANGED, NEW_FOLDER = Entry(kind=FILE, mode=0o755, digest="?"), Entry(kind=FOLDER, mode=0o755)
GONE = Entry(kind=DELETED)
BASE = {
    path: Entry(kind=FOLDER) if path.endswith("/") else Entry(kind=FILE)
    for path in ("usr/", "usr/bin/", "usr/lib/", "etc/", "usr/bin/sh", "usr/bin/python3.11", "usr/bin/cat",
                 "usr/bin/gcc",
                 "usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libfoo.so.1", "etc/passwd",
                 "usr/lib/python3.11/", "usr/lib/python3.11/os.py", "usr/lib/python3.11/site-packages/",
                 "usr/lib/python3.11/site-packages/_pytest/main.py", "etc/ld.so.cache", "usr/lib/x86_64-linux-gnu/",
                 "usr/lib/x86_64-linux-gnu/libz.so.1",
                 "opt/", "opt/venv/", "opt/venv/bin/", "opt/venv/lib/", "opt/venv/lib/python3.11/",
                 "opt/venv/lib/python3.11/site-packages/", "opt/venv/lib/python3.11/site-packages/_pytest/main.py",
                 "srv/python/lib/python3.9/os.py",
                 "usr/lib/python3.11/lib-dynload/math.cpython-311-x86_64-linux-gnu.so")
}  # fmt: skip
BASE = {path.rstrip("/"): entry for path, entry in BASE.items()} | {"bin": Entry(kind=LINK, target="usr/bin")}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    grader = Grader(oracle_at="/tests", reward_file="/logs/verifier/reward.txt")
    root = Root(folder=str(tmp_path), environment={"PATH": "/opt/venv/bin:/usr/bin:/bin"})
    return Task(id="t", root=root, grader=grader, policy=TaskPolicy(forbidden_writes=("/etc/passwd",)))


def _sift(
    task: Task, changes: dict[str, Entry], content: Content = lambda _: (b"", b""), **more: object
) -> SiftedLayer:
    return sift(changes, BASE, task, content, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [
    "usr/bin/sh", "usr/bin/python3.11", "usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/python3.11/os.py",
    "usr/lib/python3.11/site-packages/_pytest/main.py", "opt/venv/lib/python3.11/site-packages/_pytest/main.py",
    "srv/python/lib/python3.9/os.py", "usr/lib/x86_64-linux-gnu/libz.so.1",
])  # fmt: skip
@pytest.mark.parametrize("entry", [CHANGED, GONE, Entry(kind=LINK, target="/app/evil")])
def test_what_scripts_rely_on_is_put_back(task: Task, path: str, entry: Entry) -> None:
    sifted = _sift(task, {path: entry, "app/answer": CHANGED})
    assert list(sifted.layer) == ["app/answer"]
    assert [(each.path, each.reason) for each in sifted.dropped] == [(path, system_files.PUT_BACK)]


@pytest.mark.parametrize("path", [
    "usr/local/bin/cat", "opt/venv/bin/python3.11", "opt/venv/bin/sh", "etc/ld.so.preload",
    "usr/lib/python3.11/pytest.py",
    "usr/lib/python3.11/site-packages/pluggy/__init__.py", "usr/lib/python3.11/site-packages/pytest-9.dist-info/RECORD",
    "root/.cache/uv/x", "root/.cache/pip/x", "conftest.py", "pytest.ini", "pyproject.toml", "app/x.pyc",
    "usr/lib/python3.11/sitecustomize.py", "usr/lib/python3.11/site-packages/evil.pth", "app/.git/hooks/pre-commit",
    "tests/test_it.py", "logs/verifier/reward.txt", "ringfence/tools/x", "grader/grade.sh", "etc/hosts",
    "dev/x", "proc/x",
])  # fmt: skip
def test_what_would_be_taken_in_their_place_is_left_out(task: Task, path: str) -> None:
    assert not _sift(task, {path: CHANGED}).layer


@pytest.mark.parametrize(("path", "entry"), [
    ("usr/lib/python311.zip", CHANGED), ("usr/lib/python311.zip", NEW_FOLDER), ("usr/lib/python3.11/os", NEW_FOLDER),
    ("usr/lib/python3.11/os", Entry(kind=LINK, target="/app/os")), ("usr/lib/python3.11/os.abi3.so", CHANGED),
    ("usr/lib/python3.11/math.py", CHANGED), ("usr/bin/pytest.py", CHANGED), ("opt/venv/bin/pluggy.py", CHANGED),
    ("usr/local/bin/json", NEW_FOLDER), ("usr/local/bin/json", Entry(kind=LINK, target="/app")),
    ("usr/local/bin/re.abi3.so", CHANGED), ("usr/pyvenv.cfg", CHANGED), ("usr/bin/pyvenv.cfg", CHANGED),
    ("usr/bin/python3.11._pth", CHANGED), ("root/.local/lib/python3.11/site-packages/pytest.py", CHANGED),
    ("usr/local/lib/python3.11/dist-packages/_pytest", NEW_FOLDER), ("usr/lib/python3.11/lib-dynload/math", NEW_FOLDER),
    ("usr/lib/python3.11/lib-dynload/pytest.py", CHANGED), ("usr/lib/python3.11/lib-dynload/_pytest", NEW_FOLDER),
    ("usr/lib/python3.11/lib-dynload/org", NEW_FOLDER),
    ("usr/lib/python3.11/lib-dynload", Entry(kind=LINK, target="/app")),
])  # fmt: skip
def test_python_finds_nothing_of_the_agents_before_its_own_library(task: Task, path: str, entry: Entry) -> None:
    assert not _sift(task, {path: entry}).layer


@pytest.mark.parametrize("path", ["usr/lib/python3.11/tkinter", "usr/lib/python3.11/lib-dynload/own",
                                  "usr/local/bin/tool", "app/venv/lib/python3.11/os",
                                  "app/venv/pyvenv.cfg", "app/venv/lib/python3.11/site-packages/pytest"])  # fmt: skip
def test_a_new_part_of_python_or_a_new_environment_is_graded(task: Task, path: str) -> None:
    assert _sift(task, {path: NEW_FOLDER}).layer and _sift(task, {path: Entry(kind=LINK, target="/app")}).layer


@pytest.mark.parametrize("path", [
    "usr/bin/jq", "usr/local/bin/pmars", "usr/bin/gcc", "usr/bin/curl", "usr/lib/x86_64-linux-gnu/libfoo.so.1",
    "usr/lib/x86_64-linux-gnu/libnew.so", "usr/lib/python3.11/distutils/core.py", "app/conftest.py", "app/bin/sh",
    "usr/lib/python3.11/site-packages/numpy/core.py", "usr/lib/python3.12/pytest.py", "etc/nginx/nginx.conf",
    "root/.bashrc",
    "logs/agent/log", "tmp/out.txt", "home/x/.cache/other", "opt/venv/bin/pytest",
])  # fmt: skip
def test_what_tasks_ask_for_is_graded(task: Task, path: str) -> None:
    """curl and pytest are new: the image has none that they could stand before."""
    assert list(_sift(task, {path: CHANGED}).layer) == [path]
    assert not _sift(task, {path: Entry(kind=FIFO)}).layer


@pytest.mark.parametrize("entry", [GONE, Entry(kind=LINK, target="/app"), CHANGED])
@pytest.mark.parametrize("path", [
    "usr", "usr/bin", "usr/lib", "bin", "etc", "usr/lib/x86_64-linux-gnu", "usr/lib/python3.11",
    "usr/lib/python3.11/site-packages", "opt", "opt/venv", "opt/venv/bin", "opt/venv/lib", "opt/venv/lib/python3.11",
])  # fmt: skip
def test_a_system_folder_that_was_replaced_is_seen_again(task: Task, path: str, entry: Entry) -> None:
    assert not _sift(task, {path: entry}).layer


def test_a_folder_in_the_place_of_a_link_goes_with_all_that_is_in_it(task: Task) -> None:
    changes = {"bin": Entry(kind=FOLDER, opaque=True), "bin/anything": CHANGED}
    assert not _sift(task, changes).layer


def test_a_system_folder_that_was_made_anew_hides_nothing(task: Task) -> None:
    changes = {"usr": NEW_FOLDER, "usr/bin": Entry(kind=FOLDER, mode=0o755, opaque=True), "usr/bin/jq": CHANGED}
    left = _sift(task, changes).layer
    assert not left["usr/bin"].opaque and "usr/bin/jq" in left
    assert _sift(task, {"app": Entry(kind=FOLDER, opaque=True)}).layer["app"].opaque


def test_a_task_can_have_the_system_graded_as_it_was_left(task: Task) -> None:
    assert task.grader is not None
    left = replace(task, grader=replace(task.grader, system_as_left=True))
    assert set(_sift(left, {"usr/bin/sh": CHANGED, "conftest.py": CHANGED, "usr": GONE}).layer) >= {"usr/bin/sh", "usr"}
    assert not _sift(left, {"tests/x": CHANGED, "app/f": Entry(kind=FIFO)}).layer


@pytest.mark.parametrize("entry", [CHANGED, GONE, Entry(kind=LINK, target="/app/evil")])
def test_what_our_own_loader_reads_is_never_the_agents(task: Task, entry: Entry) -> None:
    assert task.grader is not None
    as_left = replace(task, grader=replace(task.grader, system_as_left=True))
    assert not _sift(as_left, {"etc/ld.so.preload": entry}).layer


def test_forbidden_writes_are_told_and_hidden_places_are_nobodys_work(task: Task) -> None:
    sifted = _sift(task, {"etc/passwd": CHANGED, "solution/x": CHANGED, "app/x": CHANGED}, hidden=("solution",))
    assert sifted.forbidden == ("/etc/passwd",) and list(sifted.layer) == ["app/x"]
    assert [each.path for each in sifted.dropped] == ["solution/x"]


def test_what_is_forbidden_through_a_link_of_the_image_is_forbidden_where_it_leads(task: Task) -> None:
    forbidding = replace(task, policy=TaskPolicy(forbidden_writes=("/run/app/rules",)))
    image = {"run": Entry(kind=FOLDER), "run/app": Entry(kind=LINK, target="../app"), "app": Entry(kind=FOLDER),
             "app/rules": CHANGED}  # fmt: skip
    sifted = sift({"app/rules": replace(CHANGED, size=9), "app/x": CHANGED}, image, forbidding)
    assert sifted.forbidden == ("/app/rules",) and list(sifted.layer) == ["app/x"]
    exchanged = sift({"run/app": Entry(kind=LINK, target="/app/own")}, image, forbidding)
    assert "/run/app" in exchanged.forbidden and not exchanged.layer


def _cache(*rows: tuple[str, str], old: bool = False) -> bytes:
    """A cache of glibc's loader; a path begins in the middle of a text."""
    head = 48 + 24 * len(rows)
    texts, table = b"", b""
    for name, path in rows:
        place = head + len(texts)
        table += struct.pack("<iIIIQ", 0x303, place, place + len(name) + 2, 0, 0)
        texts += f"{name}\0.{path}\0".encode()
    new = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(rows), len(texts)) + bytes(20) + table + texts
    return b"ld.so-1.7.0\0" + struct.pack("<I", 1) + bytes(12) + bytes(4) + new if old else new


def _sifted_cache(task: Task, before: bytes, after: bytes) -> bool:
    return bool(_sift(task, {"etc/ld.so.cache": CHANGED}, lambda _: (before, after)).layer)


@pytest.mark.parametrize("old", [True, False])
def test_a_loaders_cache_finds_what_every_program_loads_where_the_image_has_it(task: Task, old: bool) -> None:
    libc, libz, new = ("libc.so.6", "/lib/libc.so.6"), ("libz.so.1", "/lib/libz.so.1"), ("libnew.so", "/opt/libnew.so")
    own = _cache(libc, libz, old=old)
    assert _sifted_cache(task, own, _cache(libc, libz, new, old=old))
    for rows in ((("libc.so.6", "/app/evil"), libz), (libc, libz, ("libc.so.6", "/app/libc.so.6")), (libc,), ()):
        assert not _sifted_cache(task, own, _cache(*rows, old=old)), rows
    whole = _cache(libc, libz, new, old=old)
    for broken in (b"", b"x" * 100, whole[:30], whole[:90], whole[:-20]):
        assert not _sifted_cache(task, own, broken)
    assert not _sifted_cache(task, b"", own)


@pytest.mark.parametrize("entry", [GONE, Entry(kind=LINK, target="/app/cache")])
def test_a_loaders_cache_is_not_taken_away(task: Task, entry: Entry) -> None:
    """Without one the loader looks first in directories that an image need not have."""
    assert not _sift(task, {"etc/ld.so.cache": entry}).layer


@pytest.mark.parametrize("path", ["etc/nsswitch.conf", "etc/ld-musl-x86_64.path", "etc/ssl/openssl.cnf"])
def test_files_that_name_libraries_to_load_are_the_images(task: Task, path: str) -> None:
    assert not _sift(task, {path: CHANGED}).layer


def test_files_that_decide_by_what_they_hold(task: Task) -> None:
    def told(before: bytes, after: bytes) -> Content:
        return lambda _: (before, after)

    path = {"usr/lib/python3.11/site-packages/x.pth": CHANGED}
    assert _sift(task, path, told(b"", b"/app/src\n")).layer and not _sift(task, path, told(b"", b"import os\n")).layer
    source = {"opt": NEW_FOLDER, "opt/x": NEW_FOLDER}
    for name in ("pytest", "_pytest", "pluggy"):
        brought = {**path, **source, f"opt/x/{name}": NEW_FOLDER, f"opt/x/{name}/__init__.py": CHANGED}
        assert set(path) & set(_sift(task, brought, told(b"", b"/opt/y\n")).layer)
        assert not set(path) & set(_sift(task, brought, told(b"", b"/opt/x\n")).layer)
    assert not set(path) & set(_sift(task, {**path, **source, "opt/x/pytest.py": CHANGED}, told(b"", b"/opt/x")).layer)
    honest = {**path, **source, "opt/x/pytest.ini": CHANGED, "opt/x/packaging": NEW_FOLDER, "opt/x/own.py": CHANGED}
    assert set(path) <= set(_sift(task, honest, told(b"", b"/opt/x\n")).layer)
    assert not set(path) & set(_sift(task, path, told(b"", b"/bin/x\n")).layer), "the image's /bin is a link"
    plugin = {"usr/lib/python3.11/site-packages/x-1.dist-info/entry_points.txt": CHANGED}
    assert not _sift(task, plugin, told(b"", b"[pytest11]\nx = x\n")).layer
    assert _sift(task, plugin, told(b"", b"[console_scripts]\nx = x\n")).layer


@pytest.mark.parametrize("path", ["x-1.egg-info/entry_points.txt", "X.DIST-INFO/entry_points.txt",
                                  "x.egg/EGG-INFO/entry_points.txt"])  # fmt: skip
def test_no_plugin_of_pytest_is_graded_by_whatever_name(task: Task, path: str) -> None:
    packages = "usr/lib/python3.11/site-packages"
    for entry, data in ((CHANGED, b"[pytest11]\nx = x\n"), (Entry(kind=LINK, target="/app/x"), b"")):
        assert not _sift(task, {f"{packages}/{path}": entry}, lambda _, data=data: (b"", data)).layer  # type: ignore[misc]
    assert not _sift(task, {f"{packages}/{os.path.dirname(path)}": Entry(kind=LINK, target="/app/x")}).layer
    assert _sift(task, {f"{packages}/{path}": CHANGED}, lambda _: (b"", b"[console_scripts]\nx = x\n")).layer


def test_a_list_of_paths_names_no_archive(task: Task) -> None:
    path = "usr/lib/python3.11/site-packages/x.pth"
    for line in (b"/app/lib", b"../../../../app/lib", b"/app/lib/deep"):
        for entry in (CHANGED, Entry(kind=LINK, target="/tmp")):
            assert path not in _sift(task, {path: CHANGED, "app/lib": entry}, lambda _, line=line: (b"", line)).layer  # type: ignore[misc]
        assert path in _sift(task, {path: CHANGED, "app/lib": NEW_FOLDER}, lambda _, line=line: (b"", line)).layer  # type: ignore[misc]


_LIBS = {path: Entry(kind=FILE) for path in ("usr/local/lib/libpython3.13.so.1.0", "opt/venv/lib/libpython3.11.so.1.0")}


@pytest.mark.parametrize("path", [
    "usr/local/lib/libc.so.6", "usr/lib/libz.so.1", "usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0", "lib/libc.so.6",
    "opt/venv/lib/libc.so.6", "opt/venv/lib64/libpython3.13.so.1.0", "opt/venv/lib/libpython3.11.so.1.0",
    "usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libselinux.so.1", "usr/local/lib/tls/haswell/libz.so.1",
    "usr/local/lib/glibc-hwcaps/x86-64-v2/libpython3.13.so.1.0",
])  # fmt: skip
def test_no_library_is_found_before_the_images_own(task: Task, path: str) -> None:
    for entry in (CHANGED, Entry(kind=LINK, target="/app/evil")):
        assert not sift({path: entry}, {**BASE, **_LIBS}, task).layer


@pytest.mark.parametrize("path", [
    "usr/local/lib/libsqlite3.so.0", "opt/venv/lib/libown.so", "usr/local/lib/haswell/libown.so", "app/lib/libc.so.6",
    "usr/lib/python3.11/site-packages/own.libs/libz.so.1", "opt/other/lib/libc.so.6",
])  # fmt: skip
def test_libraries_that_the_image_has_not_are_graded(task: Task, path: str) -> None:
    assert sift({path: CHANGED}, {**BASE, **_LIBS}, task).layer


@pytest.mark.parametrize("path", [
    "usr/local/lib", "opt/venv/lib64", "usr/lib/x86_64-linux-gnu/glibc-hwcaps", "usr/lib/x86_64-linux-gnu/haswell",
    "usr/local/lib/glibc-hwcaps/x86-64-v3",
])  # fmt: skip
def test_no_link_leads_to_libraries_before_the_images_own(task: Task, path: str) -> None:
    assert not _sift(task, {path: Entry(kind=LINK, target="/app/lib")}).layer
    assert _sift(task, {path: NEW_FOLDER}).layer


_SEARCHED = {"usr/local/cuda": Entry(kind=LINK, target="/etc/cuda"), "opt/cuda-12": NEW_FOLDER,
             "etc/cuda": Entry(kind=LINK, target="../opt/cuda-12"),
             "opt/own.so": Entry(kind=LINK, target="cuda-12/real.so")}  # fmt: skip


@pytest.mark.parametrize("graders", [True, False])
@pytest.mark.parametrize(("path", "entry"), [
    ("usr/local/nvidia/lib64/libc.so.6", CHANGED), ("usr/local/nvidia/lib64/glibc-hwcaps/x/libz.so.1", CHANGED),
    ("usr/local/nvidia/lib64/tls", Entry(kind=LINK, target="/app")), ("opt/cuda-12/lib64/libc.so.6", CHANGED),
    ("usr/local/nvidia/lib64", Entry(kind=LINK, target="/app")), ("usr/local/nvidia", Entry(kind=LINK, target="/app")),
    ("usr/local/cuda", Entry(kind=LINK, target="/app")), ("etc/cuda", Entry(kind=LINK, target="/app")),
    ("opt/cuda-12", Entry(kind=LINK, target="/app")), ("usr/local/cuda/lib64/libc.so.6", CHANGED),
    ("opt/own.so", CHANGED), ("opt/cuda-12/real.so", CHANGED), ("opt/own.so", Entry(kind=LINK, target="/app/x")),
])  # fmt: skip
def test_variables_lead_programs_to_nothing_of_the_agents(task: Task, path: str, entry: Entry, graders: bool) -> None:
    assert task.root is not None and task.grader is not None
    said = {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/cuda/lib64/:relative", "LD_PRELOAD": "/opt/own.so"}
    told = replace(task, grader=replace(task.grader, environment=said)) if graders else replace(
        task, root=replace(task.root, environment={**task.root.environment, **said}))  # fmt: skip
    assert not _sift(told, {path: entry}, look=_SEARCHED.get).layer
    assert _sift(task, {path: entry}, look=_SEARCHED.get).layer
    for other in ("usr/local/nvidia/lib64/libcuda.so.1", "opt/cuda-12/libc.so.6", "opt/cuda-12/lib64/libown.so"):
        assert _sift(told, {other: CHANGED}, look=_SEARCHED.get).layer


def test_links_of_an_image_in_a_circle_end(task: Task) -> None:
    circle = {"a": Entry(kind=LINK, target="b"), "b": Entry(kind=LINK, target="../a/x")}
    assert len(layers.links.passed("a/lib", circle.get)) < 50


_ABSENT = ("org", "java", "vms_lib", "msvcrt", "winreg", "_winreg", "_winapi", "_wmi", "_scproxy", "nt", "_overlapped",
           "_manylinux")  # fmt: skip


@pytest.mark.parametrize("name", _ABSENT)
@pytest.mark.parametrize("folder", ["usr/lib/python3.11/site-packages", "usr/lib/python3.11", "usr/bin",
                                    "root/.local/lib/python3.11/site-packages"])  # fmt: skip
def test_nobody_answers_where_the_standard_library_asks_in_vain(task: Task, name: str, folder: str) -> None:
    """``import copy`` tries ``org.python.core``, and ``subprocess`` tries ``msvcrt``: no Linux has them."""
    for path, entry in ((name, NEW_FOLDER), (f"{name}/__init__.py", CHANGED), (f"{name}.py", CHANGED),
                        (f"{name}.abi3.so", CHANGED), (name, Entry(kind=LINK, target="/app"))):  # fmt: skip
        assert path.endswith("__init__.py") or not _sift(task, {f"{folder}/{path}": entry}).layer, path
    whole = {f"{folder}/{name}": NEW_FOLDER, f"{folder}/{name}/__init__.py": CHANGED}
    assert not _sift(task, whole).layer and _sift(task, {f"app/{name}.py": CHANGED, f"{folder}/own.py": CHANGED}).layer
    for other in (f"{name}x.py", f"own/{name}.py"):
        assert _sift(task, {f"usr/lib/python3.11/site-packages/{other}": CHANGED}).layer


@pytest.mark.parametrize("name", [f"{each}.py" for each in _ABSENT])
def test_no_list_of_paths_leads_to_what_the_standard_library_asks_for(task: Task, name: str) -> None:
    path = {"usr/lib/python3.11/site-packages/x.pth": CHANGED}
    assert not path.keys() & _sift(task, {**path, f"opt/x/{name}": CHANGED}, lambda _: (b"", b"/opt/x\n")).layer.keys()
    assert path.keys() < _sift(task, {**path, f"opt/x/y/{name}": CHANGED}, lambda _: (b"", b"/opt/x\n")).layer.keys()


@pytest.mark.parametrize("before", [
    b"\xef\xbb\xbf", b"nowhere\f", b"nowhere\v", b"x\x1c", b"x\x1d", b"x\x1e", b"x\xc2\x85", b"x\xe2\x80\xa8",
    b"x\xe2\x80\xa9", b"x\x85", b"\0", b"",
])  # fmt: skip
@pytest.mark.parametrize("blank", [b" ", b"\t"])
def test_no_line_of_a_list_of_paths_is_hidden_from_us_and_run_by_python(
    task: Task, before: bytes, blank: bytes
) -> None:
    """What some Python takes for the end of a line, or skips, before an ``import``; and each of these by itself."""
    path = {"usr/lib/python3.11/site-packages/x.pth": CHANGED}
    for line in (b"import%bos\n" % blank, b"/app/src\n"):
        graded = _sift(task, path, lambda _, line=line: (b"", before + line)).layer  # type: ignore[misc]
        assert bool(graded) == (not before and b"import" not in line)
    for plain in (b"/app/src", b"../important\r\n# a comment\n/app/my imports/x\n", b"\t/app/src~\n"):
        assert _sift(task, path, lambda _, plain=plain: (b"", plain)).layer == path  # type: ignore[misc]


def test_blanks_after_a_path_hide_nothing_that_it_leads_to(task: Task) -> None:
    """Python takes them away."""
    path = "usr/lib/python3.11/site-packages/x.pth"
    for after in (b"", b" ", b"\t \t"):
        content: Content = lambda _, after=after: (b"", b"/app/lib%b\n" % after)  # type: ignore[misc]  # noqa: E731
        for brought in ({"app/lib": CHANGED}, {"app/lib": NEW_FOLDER, "app/lib/pytest.py": CHANGED}):
            assert path not in _sift(task, {path: CHANGED, **brought}, content).layer
        assert path in _sift(task, {path: CHANGED, "app/lib": NEW_FOLDER, "app/lib/x.py": CHANGED}, content).layer


@pytest.mark.parametrize("path", ["root/.config/uv/uv.toml", "root/.config/pip/pip.conf", "etc/pip.conf",
                                  "etc/uv/uv.toml", "root/.pip/pip.conf", "root/.curlrc", "pytest.toml",
                                  ".pytest.toml"])  # fmt: skip
def test_settings_of_the_graders_own_tools_are_not_the_agents(task: Task, path: str) -> None:
    assert not _sift(task, {path: CHANGED}).layer


@pytest.mark.parametrize("target", [
    "/tests/answer", "../tests/answer", "/", "..", "/logs", "/logs/verifier/reward.txt", "/grader/grade.sh",
    "/proc/self/root/tests/answer", "/proc/1/cwd", "/dev/stdin", "/dev/fd/0", "/var/run/../tests/answer",
    "/app/other/answer", "/tests/../tests",
    "/app/circle", "/app/deep/../../tests/answer", "//tests", "/ringfence/tools",
])  # fmt: skip
@pytest.mark.parametrize("as_left", [True, False])
def test_no_link_to_what_the_grader_has_is_an_answer(task: Task, target: str, as_left: bool) -> None:
    assert task.grader is not None
    image = {"var/run": Entry(kind=LINK, target="/run"), "app/deep": Entry(kind=LINK, target="/var")}
    agents = {"app/other": Entry(kind=LINK, target="../tests"), "app/circle": Entry(kind=LINK, target="circle"),
              "app/answer": Entry(kind=LINK, target=target)}  # fmt: skip
    sifted = _sift(replace(task, grader=replace(task.grader, system_as_left=as_left)), agents, look=image.get)
    assert not sifted.layer and {each.path for each in sifted.dropped} == agents.keys()


@pytest.mark.parametrize("target", ["/dev/null", "../proc/self/mounts", "/app/tests/x", "/usr/bin/gcc", "data",
                                    "../etc/hosts", "/sys/x", "/var/run/x", "/tmp", "/deleted/tests",
                                    "/dev/stdout"])  # fmt: skip
def test_other_links_are_graded(task: Task, target: str) -> None:
    image = {"var/run": Entry(kind=LINK, target="/run"), "deleted": Entry(kind=LINK, target="/")}
    layer = {"app/x": Entry(kind=LINK, target=target), "deleted": Entry(kind=FOLDER, opaque=True)}
    assert _sift(task, layer, look=image.get).layer == layer


def test_links_that_take_too_long_to_follow_are_left_out(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.links, "MAX_STEPS", 3)
    rows = {f"app/{number}": Entry(kind=LINK, target="/tmp") for number in range(5)}
    assert len(_sift(task, rows).layer) == 3


@pytest.mark.parametrize("path", [
    "root/.local/bin/env", "root/.local/bin/env.fish", "root/.local/bin/uvx", "root/.local/bin/grep", "root/.cargo/env",
    "home/x/.cargo/bin/uv", "root/.local/share/uv/tools/pytest/bin/pytest", "root/.local/share/uv/python",
])  # fmt: skip
def test_what_scripts_of_benchmarks_read_in_a_home_is_not_the_agents(task: Task, path: str) -> None:
    """``curl … | sh; . ~/.local/bin/env; uvx pytest``: the installer leaves an env that is there."""
    assert not _sift(task, {path: CHANGED}).layer


@pytest.mark.parametrize("path", [
    "root", "home", "home/x", "root/.local", "root/.local/bin", "root/.local/lib", "root/.local/lib/python3.11",
    "root/.config", "root/.config/uv", "root/.cache", "root/.cache/pip", "root/.local/share/uv",
    "usr/local/lib/python3.11/dist-packages",
])  # fmt: skip
def test_no_link_leads_around_a_rule_for_names(task: Task, path: str) -> None:
    assert not _sift(task, {path: Entry(kind=LINK, target="/app/home")}).layer
    assert _sift(task, {path: NEW_FOLDER}).layer or "uv" in path or "pip" in path


@pytest.mark.parametrize("path", ["root/.local/bin/mytool", "root/.cargo/bin/cargo", "root/.local/share/x", "app/env"])
def test_other_programs_of_a_user_are_graded(task: Task, path: str) -> None:
    assert _sift(task, {path: CHANGED}).layer


def test_too_much_is_the_agents_problem(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.import_filter, "MAX_ENTRIES", 1)
    assert "more than 1" in _sift(task, {"a": CHANGED, "b": CHANGED}).problem
