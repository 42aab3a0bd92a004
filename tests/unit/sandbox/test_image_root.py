"""A directory as the root of a sandbox. What is in it is hostile: links, devices and set-id files lead nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.image_folder import make_root

import ringfence
from ringfence import PolicyError, Pool, SandboxPolicy, SetupError, UsageError, run
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.planned import planned
from ringfence.model import state_folder
from ringfence.model.job import Job

pytestmark = [pytest.mark.system, pytest.mark.privileges]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("image") / "rootfs")


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """A copy, for tests that change it: programs are linked, and nothing else."""
    made = tmp_path / "rootfs"
    shutil.copytree(pristine, made, symlinks=True, copy_function=os.link)
    for name in ("passwd", "made-by"):
        (made / "etc" / name).unlink()
        shutil.copy(pristine / "etc" / name, made / "etc" / name)
    return made


def _strict(root: Path, **fields: object) -> SandboxPolicy:
    return SandboxPolicy.from_dict({"isolation": "strict", "root": str(root), "wall_time_s": 60, **fields})


def _said(root: Path, script: str, cwd: Path | None = None, **fields: object) -> str:
    outcome = run(["sh", "-c", script], _strict(root, **fields), cwd=cwd)
    return (outcome.stdout + outcome.stderr).decode()


def test_the_root_is_the_folder_and_nothing_of_the_host_is_seen(pristine: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host\n")
    seen = _said(pristine, f"cat /etc/made-by /etc/passwd; ls -d /etc/shadow /usr/lib/python3 {tmp_path}; echo /home/*")
    assert "an image\n" in seen and "worker" in seen and seen.count("No such file") == 3
    assert "/home/user /home/worker\n" in seen
    mounted = _said(pristine, "cat /proc/self/mountinfo /proc/self/mounts")
    assert "overlay" in mounted and str(tmp_path.parent) not in mounted and "rootfs" not in mounted


def test_the_job_is_root_inside_without_a_capability_and_nobody_outside(pristine: Path) -> None:
    told = _said(pristine, "id -u; id -g; cat /proc/self/uid_map; grep -E '^Cap|^NoNew|^Seccomp:' /proc/self/status")
    uid, gid, ids, *status = told.splitlines()
    assert (uid, gid, ids.split()[0], ids.split()[2]) == ("0", "0", "0", "1")
    assert int(ids.split()[1]) not in (0, *range(1, 1000))
    assert [line.split()[1] for line in status] == ["0" * 16] * 5 + ["1", "2"]


@pytest.mark.parametrize(
    ("user", "ids"),
    [("", "0 0 root /root"), ("worker", "1234 2345 worker /home/worker"), ("4321", "4321 4321 4321 /"),
     ("1234:others", "1234 777 worker /home/worker"), ("worker:5", "1234 5 worker /home/worker")],
)  # fmt: skip
def test_the_job_is_who_the_policy_says(pristine: Path, user: str, ids: str) -> None:
    script = 'echo $(id -u) $(id -g) $USER $HOME; touch /app/own && stat -c %u /app/data.txt'
    uid = ids.split()[0]
    assert _said(pristine, script, cwd=pristine, root_user=user) == f"{ids}\n{uid}\n"


@pytest.mark.parametrize("user", ["nobody-there", "worker:none-such"])
def test_who_is_not_in_the_root_is_refused(pristine: Path, user: str) -> None:
    with pytest.raises(PolicyError, match="root_user"):
        run(["true"], _strict(pristine, root_user=user))


def test_no_library_is_loaded_into_every_program(root: Path) -> None:
    (root / "etc" / "ld.so.preload").write_text("/opt/evil.so\n")
    assert "No such file" in _said(root, "cat /etc/ld.so.preload") and "ld.so:" not in _said(root, "cat /etc/passwd")


def test_it_is_read_only_and_what_is_private_is_not(pristine: Path) -> None:
    script = "pwd; for f in /x /usr/x /etc/hosts; do echo x > $f; done; for d in . /tmp /var/tmp ~ /dev/shm; "
    told = _said(pristine, f"{script} do echo x > $d/x && echo fine; done")
    assert told.startswith("/workspace\n") and told.count("fine") == 5 and told.count("Read-only") == 3


def test_a_job_that_works_in_it_writes_everywhere_in_a_layer(root: Path) -> None:
    script = "pwd; echo x > /x; echo y > /tmp/y; rm /etc/made-by; echo 2 > /app/data.txt; touch ~/z"
    outcome = run(["sh", "-c", script], _strict(root), cwd=root)
    assert outcome.stdout == b"/\n" and outcome.stderr == b""
    changes = {change.path: str(change.kind) for change in outcome.changes}
    assert changes == {"x": "added", "tmp": "added", "tmp/y": "added", "etc/made-by": "deleted",
                       "app/data.txt": "modified", "root/z": "added"}  # fmt: skip
    assert (root / "app" / "data.txt").read_text() == "of the image\n" and not (root / "x").exists()
    assert run(["sh", "-c", "pwd; echo x > new"], _strict(root), cwd=root / "app", commit=True).stdout == b"/app\n"
    assert (root / "app" / "new").read_text() == "x\n"


def test_a_transaction_over_it_lies_at_the_root(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    policy = _strict(root, shown_at={str(other): "/given"})
    with Transaction.create(tmp_path / "kept", [root, other], kind="overlay") as transaction:
        for number in (1, 2):
            counted = run(["sh", "-c", "echo >> /usr/n; wc -l < /usr/n; rm -f /etc/made-by; echo x > /given/x"], policy,
                          cwd=root / "app", transaction=transaction)  # fmt: skip
            assert counted.stdout == b"%d\n" % number, counted.stderr
        first = transaction.create_checkpoint("here").checkpoint_id
        run(["sh", "-c", "rm -rf /app /usr/n"], policy, cwd=root, transaction=transaction)
        assert "deleted" in {str(change.kind) for change in transaction.changes() if change.path.endswith("/app")}
        transaction.rollback(first)
        seen = run(["sh", "-c", "cat data.txt; ls /etc/made-by"], policy, cwd=root / "app", transaction=transaction)
        assert seen.stdout == b"of the image\n" and b"No such file" in seen.stderr
        assert "usr/n" in transaction.diff()
    assert (root / "etc" / "made-by").exists() and not (other / "x").exists()


def test_the_root_of_an_image_may_lie_in_our_own_folder_and_nothing_else_of_it(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = Path(state_folder.made(state_folder.IMAGES)) / "0123"
    shutil.copytree(pristine, place / "root", symlinks=True, copy_function=os.link)
    script = f"pwd; ls {tmp_path}; echo x > /app/x"
    seen = run(["sh", "-c", script], _strict(place / "root"), cwd=place / "root" / "app")
    assert seen.stdout == b"/app\n" and [change.path for change in seen.changes] == ["app/x"]
    with Transaction.create(tmp_path / "kept", [place / "root"], kind="overlay") as transaction:
        assert run(["ls", "/"], _strict(place / "root"), transaction=transaction).ok
    with pytest.raises(UsageError, match="directory of ringfence's own"):
        Transaction.create(tmp_path / "other", [place], kind="overlay")


# ---- hostile roots


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """What a link of the image would like to lead to."""
    made = tmp_path / "of-the-host"
    made.mkdir(mode=0o777)
    made.chmod(0o777)
    (made / "passwd").write_text("the host's\n")
    return made


@pytest.mark.parametrize("name", ["etc", "tmp", "proc", "dev", "sys", "var", "run", "workspace", "home"])
@pytest.mark.parametrize("layered", [False, True])
def test_a_link_in_the_place_of_a_mount_point_leads_nowhere(
    root: Path, hosts: Path, name: str, layered: bool
) -> None:
    if (root / name).exists():
        (root / name).rename(root / f"{name}-old")
    (root / name).symlink_to(hosts)
    script = f"cat /{name}/passwd; for d in /tmp /var/tmp /dev/shm /run ~; do echo x > $d/mine; done"
    told = _said(root, f"{script}; ls /proc/self/status", cwd=root if layered else None)
    assert "the host's" not in told and "/proc/self/status\n" in told
    assert os.listdir(hosts) == ["passwd"] and (hosts / "passwd").read_text() == "the host's\n"
    assert (root / name / "passwd").read_text() == "the host's\n"  # it would have led there


@pytest.mark.parametrize("name", ["dev", "proc", "tmp", "etc/resolv.conf", "etc/hosts"])
def test_other_kinds_of_files_in_the_place_of_mount_points(root: Path, name: str) -> None:
    os.mkfifo(root / name)
    assert _said(root, "cat /etc/hosts; echo x > /tmp/x; ls /proc/self/status /dev/null") == (
        "127.0.0.1 localhost ringfence\n::1 localhost ringfence\n/dev/null\n/proc/self/status\n"
    )


def test_links_out_of_the_root_are_links_within_it(root: Path, hosts: Path) -> None:
    (root / "app" / "up").symlink_to("../" * 30 + str(hosts).lstrip("/"))
    (root / "app" / "away").symlink_to(hosts)
    (root / "app" / "magic").symlink_to("/proc/1/root")
    told = _said(root, "cat /app/up/passwd /app/away/passwd; cat /app/magic/etc/passwd; cd ../../../..; pwd")
    assert "the host's" not in told and told.startswith("/\n")
    assert (root / "app" / "up" / "passwd").read_text() == "the host's\n"  # the control: on the host it leads there


def test_the_accounts_are_read_inside_the_root(root: Path, hosts: Path) -> None:
    """Read as the caller, before there is a sandbox: a link to the host's /etc, or a FIFO, must not be followed."""
    (hosts / "evil").write_text("worker:x:77:77::/:/bin/sh\n")
    (root / "etc" / "passwd").unlink()
    (root / "etc" / "passwd").symlink_to(hosts / "evil")
    with pytest.raises(PolicyError, match="no 'worker'"):
        run(["true"], _strict(root, root_user="worker"))
    (root / "etc" / "passwd").unlink()
    os.mkfifo(root / "etc" / "passwd")
    assert _said(root, "id -u") == "0\n"
    inner = root / "app" / str(hosts).lstrip("/")
    inner.mkdir(parents=True)
    (root / "etc" / "passwd").unlink()
    (root / "etc" / "passwd").symlink_to("/app/users")
    (root / "app" / "users").write_text("worker:x:78:79::/:/bin/sh\n")
    assert _said(root, "id -u", root_user="worker") == "78\n"


def test_set_id_files_and_devices_of_the_root_give_nothing(root: Path) -> None:
    (root / "usr" / "bin" / "id").unlink()
    shutil.copy(shutil.which("id") or "", root / "usr" / "bin" / "id")
    (root / "usr" / "bin" / "id").chmod(0o6755)
    if os.geteuid() == 0:
        os.mknod(root / "app" / "null", 0o20666, os.makedev(1, 3))
        os.chown(root / "usr" / "bin" / "id", 4000, 4000)
        (root / "usr" / "bin" / "id").chmod(0o6755)
    told = _said(root, "id -u; id -ru; mknod /app/new c 1 3; cat /app/null && echo opened", cwd=root, root_user="55")
    assert told.startswith("55\n55\n") and "opened" not in told and "not permitted" in told


def test_nothing_is_imported_from_the_root(root: Path) -> None:
    """pid 1 and the job are in Python until the exec: a module that they load late must not be the image's."""
    for path in {*map(Path, sys.path), Path(ringfence.__file__).parent.parent}:
        if path.is_absolute():
            place = root / str(path).lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            for name in ("fcntl", "resource", "termios", "_socket", "traceback", "importlib", "ringfence"):
                (place / f"{name}.py").write_text("import os; os.open('/dev/shm/loaded', os.O_CREAT)\n")
    assert _said(root, "ls /dev/shm; echo done") == "done\n"


def test_no_file_is_imported_any_more_once_the_image_is_the_root() -> None:
    script = "from ringfence.steps.image_steps import load_nothing_more as f; import sys; {}\ntry: import colorsys\n" \
             "except ImportError: print('refused')\nimport _symtable"  # fmt: skip
    for word, said in (("f()", b"refused\n"), ("pass", b"")):
        assert subprocess.check_output([sys.executable, "-c", script.format(word)]) == said


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_job_has_a_terminal_and_needs_no_native_part(
    pristine: Path, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    """What is done before the exec loads nothing, whatever it is done by: the image has no Python."""
    monkeypatch.setenv("RINGFENCE_PURE", pure)
    outcome = run(Job(argv=("sh", "-c", "[ -t 0 ] && id -u"), terminal=True, cwd=str(pristine)), _strict(pristine))
    assert outcome.stdout == b"0\r\n", outcome


def test_places_come_on_top_and_no_layer_gets_them(root: Path, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("echo graded\n")
    fields = {"shown_at": {str(tmp_path / "tests"): "/tests", str(tmp_path / "tests" / "test.sh"): "/given/one.sh"}}
    outcome = run(["sh", "-c", "sh /tests/test.sh; sh /given/one.sh; rm -rf /tests /given; rmdir /given"],
                  _strict(root, **fields), cwd=root)  # fmt: skip
    assert outcome.stdout == b"graded\ngraded\n" and outcome.changes == ()


@pytest.mark.parametrize("name", ["", "sandboxes"])
def test_no_folder_of_ours_is_a_root(name: str) -> None:
    """The key that seals our records lies there; the roots of images do too, and are what guests may have."""
    folder = Path(state_folder.made(name))
    for cwd in (None, folder):
        with pytest.raises(UsageError, match="of ringfence's own"):
            run(["cat", "/key"], _strict(folder), cwd=cwd)


def test_what_a_hidden_link_leads_to_is_absent_too(root: Path) -> None:
    (root / "srv" / "folder").mkdir(parents=True)
    (root / "srv" / "file").write_text("secret\n")
    (root / "srv" / "folder" / "file").write_text("secret\n")
    for name, target in (("one", "/two"), ("two", "srv/file"), ("hidden", "srv/folder"), ("all", "/"), ("gone", "no")):
        (root / name).symlink_to(target)
    hidden = ["/one", "/hidden", "/all", "/gone"]
    told = _said(root, "cat /one /two /srv/file /hidden/file /srv/folder/file; ls /etc/passwd", hidden_paths=hidden)
    assert "secret" not in told and told.count("No such file") == 5 and "/etc/passwd\n" in told


def test_hidden_names_are_absent_and_who_asks_is_told(root: Path) -> None:
    (root / "solution").mkdir()
    (root / "solution" / "solve.sh").write_text("echo 42\n")
    (root / "srv").mkdir()
    (root / "srv" / "secret").write_text("7\n")
    (root / "link").symlink_to("/srv")
    policy = _strict(root, hidden_paths=["/solution", "/link/secret", "/oracle"])
    for cwd in (None, root):
        script = "cat /solution/solve.sh /link/secret /srv/secret; ls /oracle; ls /"
        outcome = run(["sh", "-c", script], policy, cwd=cwd)
        assert b"42" not in outcome.stdout and b"solution" not in outcome.stdout and b"srv" in outcome.stdout
        touched = {str(event.details["path"]) for event in outcome.events if "path" in event.details}
        assert {"/solution", "/oracle"} <= {path.removesuffix("/solve.sh") for path in touched}, outcome.events
    assert b"42" in run(["cat", "/solution/solve.sh"], _strict(root)).stdout


def test_programs_of_another_libc_run(root: Path, tmp_path: Path) -> None:
    """One that is linked statically needs nothing of the root, nor of the host."""
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    (tmp_path / "a.c").write_text('#include <stdio.h>\n#include <unistd.h>\nint main(){printf("%d\\n",getuid());}\n')
    built = subprocess.run(["cc", "-static", "-o", root / "app" / "static", tmp_path / "a.c"], capture_output=True)
    if built.returncode:
        pytest.skip("no static libc")
    shutil.rmtree(root / "usr")
    (root / "bin").unlink()
    outcome = run(["/app/static"], _strict(root))
    assert outcome.stdout == b"0\n", outcome


# ---- what is refused


def test_other_levels_pools_boxes_and_tests_refuse_it_by_name(pristine: Path) -> None:
    with pytest.raises(PolicyError, match="choose strict"):
        SandboxPolicy(root=str(pristine))
    with pytest.raises(UsageError, match="root: a pool"):
        Pool(_strict(pristine), warm=1)
    with pytest.raises(UsageError, match="root: a living box"):
        ringfence.open(_strict(pristine))
    with pytest.raises(UsageError, match="root: tests"):
        ringfence.run_pytests_v2(["tests"], _strict(pristine))


@pytest.mark.parametrize("folder", ["/", "relative", "/nowhere/at/all", "/etc/passwd", "/proc/1/root"])
def test_what_is_no_root_is_refused(folder: str) -> None:
    with pytest.raises(PolicyError, match="root"):
        run(["true"], SandboxPolicy.from_dict({"isolation": "strict", "root": folder}))


def test_a_place_behind_a_link_of_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    """A directory of ours there would hide all that the link leads to."""
    (root / "opt-link").symlink_to("usr")
    with pytest.raises(SetupError, match="in the way"):
        run(["true"], _strict(root, shown_at={str(tmp_path): "/opt-link/x"}))


def test_the_plan_says_what_is_mounted(pristine: Path) -> None:
    rows = planned(_strict(pristine))
    step = next(row for row in rows if row.step == "image root")
    assert step.process == "pid 1" and "/proc" in str(step.arguments)
    assert not any(word == "/usr" for row in rows for word in row.arguments)
