"""The client against a real Docker engine: what is asked for is applied, and what comes back is what happened."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.container import api, applied, group_files, orphans
from ringfence.container.frames import Frames
from ringfence.container.hardening import Bind, ContainerSpec
from ringfence.errors import SandboxError, SetupError, UsageError
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.root]


@pytest.fixture(scope="module")
def client(docker_address: str, python_image: str) -> Iterator[api.Client]:
    made = api.connect(docker_address)
    yield made
    made.close()


def python(code: str, **fields: object) -> ContainerSpec:
    spec = ContainerSpec(argv=("python3", "-I", "-S", "-c", code), labels=orphans.labels("test"))
    return replace(spec, **fields)  # type: ignore[arg-type]


def ran(client: api.Client, spec: ContainerSpec, given: bytes = b"") -> tuple[int | None, dict[int, bytes]]:
    container = client.create(spec)
    try:
        attached = client.attach(container)
        client.start(container)
        while given:
            given = given[attached.send(given) :]
        attached.close_input()
        frames, told = Frames(), {1: b"", 2: b""}
        while data := attached.receive():
            for stream, piece in frames.feed(data):
                told[stream] += piece
        attached.close()
        return client.wait(container), told
    finally:
        client.remove(container)


def test_input_goes_in_and_both_streams_come_out(client: api.Client) -> None:
    code = ("import sys; t = sys.stdin.read(); print(t[::-1], end='')\n"
            "print('bad', file=sys.stderr, end=''); sys.exit(3)")  # fmt: skip
    assert ran(client, python(code, stdin=True), b"hello") == (3, {1: b"olleh", 2: b"bad"})


def test_what_was_asked_for_is_applied_and_read_back(client: api.Client) -> None:
    spec = python("import time; time.sleep(60)", cpus=0.5, memory_bytes=64 << 20, pids=7,
                  ulimits={"nofile": (64, 64), "fsize": (1 << 20, 1 << 20), "cpu": (3, 4)})  # fmt: skip
    container = client.create(spec)
    try:
        client.start(container)
        files = group_files.limits(group_files.locate(container))
        assert int(files["memory.limit_in_bytes"]) == 64 << 20 and files["pids.max"] == "7"
        table = applied.read_back(spec, client.inspect(container), client.info(), files)
        assert {name for name, entry in table.items() if not entry.applied} == set()
        other = applied.read_back(replace(spec, memory_bytes=32 << 20, pids=6), client.inspect(container),
                                  client.info(), files)  # fmt: skip
        assert not other["memory"].applied and not other["pids"].applied
        assert client.stats(container)["pids_stats"]
        assert client.wait(container, 0.2) is None and client.kill(container) and client.wait(container) == 137
        assert not client.kill(container)
    finally:
        client.remove(container)


def test_the_mounts_and_the_root_are_as_asked(client: api.Client, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data").write_text("of the host")
    tmp_path.chmod(0o755)
    code = ("import os\nprint(open('/input/data').read(), os.getuid())\n"
            "for path in ('/input/x', '/x', '/etc/x', '/tmp/x'):\n"
            " try: open(path, 'w').close(); print(path)\n except OSError: pass")  # fmt: skip
    bind = Bind(source=str(tmp_path / "in"), target="/input")
    assert ran(client, python(code, binds=(bind,)))[1][1] == b"of the host 65534\n/tmp/x\n"


def test_files_are_put_and_got_and_a_link_is_refused(client: api.Client) -> None:
    container = client.create(python("pass", read_only=False, user="0:0"))
    try:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo("a")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
            link = tarfile.TarInfo("l")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        client.put(container, "/output", packed.getvalue())
        assert client.get(container, "/output/a", 100) == b"abc"
        with pytest.raises(UsageError, match="symlink"):
            client.get(container, "/output/l", 10_000)
        with pytest.raises(UsageError, match="directory"):
            client.get(container, "/output", 10_000)
        with pytest.raises(UsageError, match="at most"):
            client.get(container, "/etc/passwd", 5)
        with pytest.raises(SetupError):
            client.get(container, "/output/none", 5)
    finally:
        client.remove(container)


def test_an_image_that_is_not_there_is_named(client: api.Client) -> None:
    with pytest.raises(SetupError, match=r"(?i)no such image") as caught:
        client.create(python("pass", image="no-such-image:1"))
    assert caught.value.step == api.IMAGE_STEP and not client.has_image("no-such-image:1")
    assert client.has_image("python:3.10-slim")
    with pytest.raises(SandboxError):
        client.pull("localhost:1/no-such-image:1")


def test_a_log_is_kept_where_it_is_asked_for(client: api.Client) -> None:
    for size, kept in ((1000, b"said\n"), (0, b"")):
        container = client.create(python("print('said')", log_bytes=size))
        client.start(container)
        client.wait(container)
        assert client.logs(container).replace(b"\1\0\0\0\0\0\0\5", b"") == kept
        client.remove(container)
