"""The engine by its command: what it says is checked, and whatever ends us ends the command. A script plays it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.patience import eventually

from ringfence.checkpoint.transaction import Transaction
from ringfence.container import command, images
from ringfence.container.engine import Engine, Image, find_engine, read_image
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model import state_folder

ID = "sha256:" + "ab" * 32
CONFIG = {"Env": ["PATH=/usr/bin:/bin", "EMPTY=", "A=b=c"], "WorkingDir": "/app/", "User": "agent:100",
          "Entrypoint": None, "Volumes": {"/data": {}}}  # fmt: skip

# ---- what it says of an image


def told(**changes: object) -> bytes:
    return json.dumps([{"Id": ID, "Size": 5, "Config": {**CONFIG, **changes}}]).encode()


def test_an_image_is_read() -> None:
    found = read_image(told(), "a:b")
    assert found == Image(id=ID, ref="a:b", environment={"PATH": "/usr/bin:/bin", "EMPTY": "", "A": "b=c"},
                          workdir="/app", user="agent:100", volumes=("/data",), size_bytes=5)  # fmt: skip
    bare = read_image(json.dumps([{"Id": ID.removeprefix("sha256:"), "Config": None}]).encode(), "x")
    assert (bare.id, bare.workdir, bare.user, dict(bare.environment)) == (ID, "/", "", {})


@pytest.mark.parametrize("data", [
    b"", b"[]", b"{}", b"[1]", b"[" * 100_000, told() + b"x", json.dumps([{"Id": "../../evil"}]).encode(),
    json.dumps([{"Id": ID}, {"Id": ID}]).encode(), told(Env=["PATH"]), told(Env=["=x"]), told(Env=["A=\0"]),
    told(Env=[5]), told(WorkingDir="app"), told(WorkingDir="/a\0"), told(User="a:"), told(User="\0"), told(Env="A=b"),
])  # fmt: skip
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        read_image(data, "x")


# ---- a script in its place

FAKE = r"""#!/bin/sh
echo "$@" >> "$FAKE_DOCKER_LOG"
case "$1" in
info) echo "${DOCKER_FAKE_VERSION-20.10}";;
image) [ "$3" = missing ] && { echo "no such image" >&2; exit 1; }; cat "$FAKE_DOCKER/inspect.json";;
build) shift; while [ $# -gt 1 ]; do [ "$1" = --iidfile ] && out=$2; shift; done
       echo "step 1: $PROCTOR_SIGNING_SEED"; [ -e "$FAKE_DOCKER/hang" ] && { echo $$ > "$FAKE_DOCKER/pid"; sleep 600; }
       [ -e "$FAKE_DOCKER/fail" ] && {
         { cat "$FAKE_DOCKER/fail"; echo "step 2: no such command"; } | head -1 >&2; exit 3; }
       printf %s "$FAKE_DOCKER_ID" > "$out";;
create) echo c0ffee;;
export) [ -e "$FAKE_DOCKER/hang" ] && { cat "$FAKE_DOCKER/root.tar"; while echo; do sleep 0.1; done; }
        cat "$FAKE_DOCKER/root.tar"; [ -e "$FAKE_DOCKER/fail" ] && { echo "gone" >&2; exit 1; }; true;;
ps) echo c0ffee;;
rm) ;;
esac
"""


class Fake:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "docker"
        # Its own variables are not passed on, so they stand in the script.
        named = f"FAKE_DOCKER={folder}; FAKE_DOCKER_LOG={folder}/log; FAKE_DOCKER_ID={ID}\n"
        self.program.write_text(FAKE.replace("\n", f"\n{named}", 1))
        self.program.chmod(0o755)
        (folder / "inspect.json").write_bytes(told())
        (folder / "log").touch()
        (folder / "context").mkdir()
        (folder / "files").mkdir()
        (folder / "files" / "hello").write_text("world")
        subprocess.run(["tar", "-cf", folder / "root.tar", "-C", folder / "files", "."], check=True)
        self.engine = Engine(str(self.program))

    def asked(self, word: str) -> list[str]:
        return [line for line in (self.folder / "log").read_text().splitlines() if line.split()[0] == word]

    def build(self, **options: object) -> Image:
        return self.engine.build(str(self.folder / "context"), "Dockerfile", log=str(self.folder / "build.log"),
                                 **options)  # type: ignore[arg-type]  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    (tmp_path / "engine").mkdir()
    monkeypatch.setenv("PROCTOR_SIGNING_SEED", "s3cret")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Fake(tmp_path / "engine")


@pytest.mark.system
def test_the_first_that_answers_is_found(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake.folder}:/usr/bin:/bin")
    assert find_engine().path == str(fake.program)
    monkeypatch.setenv("DOCKER_FAKE_VERSION", "")
    monkeypatch.setenv("PATH", str(fake.folder))  # no podman there
    with pytest.raises(UnavailableError, match=r"docker: .*; podman is not installed") as told_of:
        find_engine()
    assert any("docker.io" in fix for fix in told_of.value.fixes)
    monkeypatch.setenv("RINGFENCE_ENGINE", str(fake.folder / "absent"))
    with pytest.raises(UnavailableError, match="absent is not installed"):
        find_engine()


@pytest.mark.system
def test_a_build_has_no_network_no_secret_and_a_log(fake: Fake) -> None:
    assert fake.build(args={"A": "b c"}).id == ID
    asked, = fake.asked("build")
    assert "--network none" in asked and "--build-arg A=b c" in asked and "--force-rm" in asked
    assert (fake.folder / "build.log").read_text() == "step 1: \n"
    os.unlink(fake.folder / "build.log")
    fake.build(network="default")
    assert "--network" not in fake.asked("build")[-1]


@pytest.mark.system
def test_podman_gives_steps_without_a_network_no_proxy_either(fake: Fake) -> None:
    """It passes on the variables of the caller's, in which there may be a password."""
    os.rename(fake.program, fake.folder / "podman")
    fake.engine = Engine(str(fake.folder / "podman"))
    fake.build()
    assert "--http-proxy=false" in fake.asked("build")[-1]


@pytest.mark.system
def test_a_build_that_fails_says_its_last_line_and_where_the_rest_is(fake: Fake) -> None:
    (fake.folder / "fail").touch()
    with pytest.raises(SetupError, match="step 2: no such command") as told_of:
        fake.build()
    assert str(fake.folder / "build.log") in told_of.value.hint and "buildx" not in told_of.value.hint


@pytest.mark.system
def test_a_failed_build_names_the_users_file_and_not_the_copy_that_was_built(fake: Fake) -> None:
    (fake.folder / "fail").write_text("failed to solve: Dockerfile:3: no such command in Dockerfile\n")
    with pytest.raises(SetupError) as told_of:
        fake.build(original="/tasks/hello/environment.txt")
    named = "/tasks/hello/environment.txt"
    assert str(told_of.value) == f"build the image: {named}: failed to solve: {named}:3: no such command in {named}"
    os.unlink(fake.folder / "build.log")
    with pytest.raises(SetupError, match="build the image: Dockerfile: failed"):
        fake.build()  # control: a file that is no copy is named as it is


@pytest.mark.system
@pytest.mark.parametrize(
    "line",
    [
        "the --chmod option requires BuildKit. Refer to …",
        "ERROR: BuildKit is enabled but the buildx component is missing or broken.",
    ],
)
def test_a_docker_without_its_builder_is_told_which_package_has_it(fake: Fake, line: str) -> None:
    (fake.folder / "fail").write_text(f"{line}\n")
    with pytest.raises(SetupError) as told_of:
        fake.build()
    assert "install docker-buildx" in told_of.value.hint and "RINGFENCE_ENGINE=podman" in told_of.value.hint


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.system
def test_a_build_that_takes_too_long_is_ended(fake: Fake) -> None:
    (fake.folder / "hang").touch()
    with pytest.raises(SetupError, match="longer than 2 s"):
        fake.build(deadline_s=2)
    assert not is_alive(int((fake.folder / "pid").read_text()))


@pytest.mark.system
def test_an_interrupt_in_the_middle_of_a_start_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []
    whole, waiting = subprocess.Popen, threading.get_ident()

    def slow(*words: object, **also: object) -> subprocess.Popen[bytes]:
        time.sleep(0.2)  # until the caller waits for this thread
        signal.pthread_kill(waiting, signal.SIGINT)
        time.sleep(0.2)
        made.append(whole(*words, **also))  # type: ignore[call-overload]
        return made[-1]

    monkeypatch.setattr("ringfence.container.command.subprocess.Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        command.run(["sleep", "60"], deadline_s=60, step="sleep")
    assert made and not is_alive(made[0].pid)


@pytest.mark.system
def test_an_interrupted_build_ends_its_command(fake: Fake) -> None:
    (fake.folder / "hang").touch()
    code = f"from ringfence.container.engine import Engine\nEngine({str(fake.program)!r}).build({str(fake.folder)!r}, 'D', log={str(fake.folder / 'l')!r})"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, start_new_session=True) as caller:
        eventually((fake.folder / "pid").exists)
        eventually(lambda: (fake.folder / "pid").read_text().strip())
        caller.send_signal(signal.SIGINT)
        _, said = caller.communicate()
    assert b"KeyboardInterrupt" in said
    assert not is_alive(int((fake.folder / "pid").read_text()))


@pytest.mark.system
def test_an_image_that_is_not_there_is_said_with_the_way_to_it(fake: Fake) -> None:
    assert fake.engine.has_image("there") and not fake.engine.has_image("missing")
    with pytest.raises(UsageError, match="no image 'missing': no such image") as told_of:
        fake.engine.image("missing")
    assert "docker pull missing" in told_of.value.hint
    for name in ("", "-v", "a b", "a\n"):
        with pytest.raises(UsageError, match="not an image name"):
            fake.engine.image(name)


# ---- the cache of roots


@pytest.mark.system
def test_a_root_is_exported_once_and_nothing_is_left_in_the_engine(fake: Fake) -> None:
    image = fake.engine.image("x")
    found = {images.root_of(fake.engine, image).folder for _ in range(3)}
    assert len(found) == 1 and len(fake.asked("export")) == 1
    assert (Path(*found) / "hello").read_text() == "world"
    assert fake.asked("create") and fake.asked("rm")[-1] == "rm --force --volumes c0ffee"
    assert images.stored() == (ID,)
    images.forget(ID)
    assert images.stored() == () and not Path(*found).exists()
    images.root_of(fake.engine, image)
    assert len(fake.asked("export")) == 2


@pytest.mark.system
def test_many_who_want_one_image_export_it_once(fake: Fake) -> None:
    image, found = fake.engine.image("x"), []
    threads = [threading.Thread(target=lambda: found.append(images.root_of(fake.engine, image))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12 and len(set(found)) == 1 and len(fake.asked("export")) == 1


@pytest.mark.system
@pytest.mark.parametrize("how", ["the engine", "the archive"])
def test_an_export_that_fails_leaves_nothing(how: str, fake: Fake) -> None:
    image = fake.engine.image("x")
    if how == "the engine":
        (fake.folder / "fail").touch()
    else:
        (fake.folder / "root.tar").write_bytes((fake.folder / "root.tar").read_bytes()[:700])
    with pytest.raises((SetupError, UsageError)):
        images.root_of(fake.engine, image)
    assert images.stored() == () and fake.asked("rm")
    assert [name for name in os.listdir(f"{os.environ['XDG_STATE_HOME']}/ringfence/images") if "lock" not in name] == []


@pytest.mark.system
def test_a_killed_export_leaves_nothing_that_is_taken_for_a_root(fake: Fake) -> None:
    (fake.folder / "hang").touch()
    code = f"""from ringfence.container import engine, images
e = engine.Engine({str(fake.program)!r})
images.root_of(e, e.image('x'))"""
    top = Path(os.environ["XDG_STATE_HOME"], "ringfence", "images")
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        eventually(lambda: list(top.glob("*.part/root/hello")))
        caller.kill()
    assert images.stored() == () and list(top.glob("*.part"))
    (fake.folder / "hang").unlink()
    (top / "dead.part").mkdir()  # of another image, whose export was killed too
    found = images.root_of(fake.engine, fake.engine.image("x"))
    assert (Path(found.folder) / "hello").read_text() == "world" and not list(top.glob("*.part"))


@pytest.mark.system
def test_a_root_may_be_worked_on_over_a_layer_and_nothing_else_of_ours(fake: Fake, tmp_path: Path) -> None:
    root = images.root_of(fake.engine, fake.engine.image("x")).folder
    with Transaction.create(tmp_path / "t1", [root], kind="overlay") as transaction:
        assert transaction.bases == (os.path.realpath(root),)
    for place in (os.path.dirname(os.path.dirname(root)), state_folder.made(), state_folder.made("sandboxes")):
        with pytest.raises(UsageError, match="is in a directory of ringfence's own"):
            Transaction.create(tmp_path / "t2", [place], kind="overlay")
