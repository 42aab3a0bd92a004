"""What STRICT shows by a policy's paths: files and directories, and never a socket, a FIFO or a device."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxPolicy, SetupError, UnavailableError, UsageError, run
from ringfence.sandbox import filters, host, networks, showing
from ringfence.sandbox import root as rootfs

pytestmark = [pytest.mark.system, pytest.mark.privileges]

_MAKE = {"a socket": lambda path: socket.socket(socket.AF_UNIX).bind(path), "a FIFO": os.mkfifo}


@pytest.fixture(params=_MAKE)
def special(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = str(tmp_path / "special")
    _MAKE[request.param](path)
    return path


@pytest.mark.parametrize("field", ["readable_paths", "writable_paths"])
@pytest.mark.parametrize("by_link", [False, True])
def test_a_path_that_is_neither_file_nor_directory_is_refused_and_named(
    special: str, field: str, by_link: bool, tmp_path: Path
) -> None:
    path = special
    if by_link:
        path = str(tmp_path / "link")
        os.symlink(special, path)
    policy = {"isolation": "strict", field: [path]}
    with pytest.raises(UnavailableError, match=field) as refused:
        run(["true"], SandboxPolicy.from_dict(policy))
    assert "give files and directories only" in refused.value.hint
    outcome = run(["cat", path], SandboxPolicy.from_dict(policy | {"allow_partial": True}))
    assert b"No such file" in outcome.stderr and not outcome.enforced[field].applied


@pytest.mark.parametrize("field", ["readable_paths", "writable_paths"])
def test_a_file_that_becomes_another_kind_after_the_look_is_not_shown(
    special: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "_never", lambda path: "")
    with pytest.raises(SetupError, match="another kind of file"):
        run(["true"], SandboxPolicy.from_dict({"isolation": "strict", field: [special]}))


@pytest.mark.parametrize("path", ["/proc", "/proc/self", "/dev", "/dev/null"])
def test_what_a_sandbox_has_of_its_own_is_its_own(path: str) -> None:
    policy = SandboxPolicy(isolation="strict", readable_paths=(path,))
    outcome = run(["sh", "-c", "echo /proc/[0-9]*; ls /dev"], policy)
    assert outcome.ok, outcome.stderr
    assert b"/proc/1 " in outcome.stdout and f"/proc/{os.getpid()}".encode() not in outcome.stdout.split()
    assert b"null" in outcome.stdout and b"vda" not in outcome.stdout and b"kmsg" not in outcome.stdout


@pytest.mark.parametrize("name", ["link", "link/file", "to file", "file"])
def test_links_and_single_files_are_shown(tmp_path: Path, name: str) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "real").mkdir()
    for file in ("real/file", "file"):
        (tmp_path / file).write_text("content")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "to file").symlink_to("file")
    wanted = tmp_path / (f"{name}/file" if name == "link" else name)
    outcome = run(["cat", str(wanted)], SandboxPolicy(isolation="strict", readable_paths=(str(tmp_path / name),)))
    assert outcome.stdout == b"content", outcome.stderr


def test_a_fifo_among_the_configuration_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert host._copied(str(tmp_path / "fifo")) == []


def test_a_workspace_with_a_mount_in_it_is_refused_in_words_where_it_can_not_be_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "is_the_hosts_root", lambda root="/": False)
    monkeypatch.setattr(showing.submounts, "below", lambda folder, points: [f"{folder}/sub"])
    with pytest.raises(UsageError, match=r"something is mounted at .*sub") as refused:
        run(Job(argv=("true",), cwd=str(tmp_path)), SandboxPolicy(isolation="strict"))
    assert "unmount it" in refused.value.hint


# ---- writable paths: the host's own directories


def test_where_the_host_shares_a_directory_the_table_says_what_closes_the_sockets_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    pairs = "import socket; a, b = socket.socketpair(); a.send(b'x'); b.recv(1); socket.socket(); print('both')"
    outcome = run(["python3", "-c", pairs], SandboxPolicy(isolation="strict", writable_paths=(str(tmp_path),)))
    assert outcome.stdout == b"both\n", outcome.stderr
    second = "Landlock" if networks.landlock_holds_unix_sockets(networks.landlock_abi()) else "seccomp"
    assert outcome.enforced["network"].mechanism == f"network namespace and {second}"
    assert "Unix sockets" in outcome.enforced["network"].details
    with ringfence.open(SandboxPolicy(isolation="strict")) as box:
        assert box.enforced["network"].mechanism == "network namespace"


@pytest.mark.parametrize(
    ("abi", "profile", "shared", "name"),
    [(7, None, ("/srv",), "unix_pairs"), (8, None, ("/srv",), "unix_pairs"), (9, None, ("/srv",), "default"),
     (7, None, (), "layered"), (0, None, ("/srv",), "unix_pairs"), (7, "tight", ("/srv",), "tight_exec")],
)  # fmt: skip
def test_the_filter_closes_unix_sockets_where_nothing_else_does(
    abi: int, profile: str | None, shared: tuple[str, ...], name: str
) -> None:
    fields = {"syscall_profile": profile} if profile else {}
    policy = SandboxPolicy.from_dict({"isolation": "strict", "writable_paths": list(shared)} | fields)
    assert filters.profile_name(policy, abi) == name


def test_configuration_that_programs_need_to_start_is_there_and_nothing_else() -> None:
    assert {"chromium.d", "chromium", "java-11-openjdk", "maven/m2.conf"} <= set(rootfs.ETC_NAMES)
    paths = [Path("/etc") / name for name in rootfs.ETC_NAMES]
    there = [path for path in paths if path.is_file() or any(each.is_file() for each in path.rglob("*"))]
    public = [str(path.relative_to("/etc")) for path in there if path.stat().st_mode & 0o004]
    assert {"alternatives", "bash.bashrc"} <= set(public)
    script = 'for name in "$@"; do test -e /etc/$name || echo $name; done; ls /etc/shadow /etc/machine-id'
    outcome = run(["sh", "-c", script, "sh", *public], SandboxPolicy(isolation="strict"))
    assert outcome.stdout == b"", outcome.stdout


def test_a_file_of_etc_that_the_policy_names_is_the_hosts() -> None:
    script = ["cat", "/etc/passwd", "/etc/hosts"]
    own = run(script, SandboxPolicy(isolation="strict")).stdout
    shown = run(script, SandboxPolicy(isolation="strict", readable_paths=["/etc/passwd", "/etc/hosts"])).stdout
    hosts = Path("/etc/passwd").read_bytes() + Path("/etc/hosts").read_bytes()
    assert shown == hosts != own


def test_a_program_that_is_no_program_is_told_by_its_exit_code() -> None:
    with pytest.raises(SetupError, match="Permission denied") as refused:
        run(["/etc/passwd"], SandboxPolicy(isolation="strict"))
    assert refused.value.step == "exec"
