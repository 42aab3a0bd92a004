"""The host's root in place of an image: what a Dockerfile may ask for, what is laid, and what is refused by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.foreign import dockerfile, laying, rootfs
from ringfence.proctor.foreign.host_facts import ThisHost
from ringfence.proctor.foreign.rootfs import Laid


class Host:
    """A host of a test's choice."""

    def __init__(self, family: str = "debian") -> None:
        self._family = frozenset(family.split())

    def family(self) -> frozenset[str]:
        return self._family

    def package(self, name: str) -> str:
        return {"git": "1:2.39", "curl": "7.88", "python3": "3.11"}.get(name, "")

    def python(self) -> str:
        return "3.11"

    def distribution(self, name: str) -> str:
        return {"requests": "2.31.0", "pytest-cov": "5.0"}.get(name, "")


def check(text: str, host: Host | None = None, workdir: str = "") -> Laid:
    return rootfs.check(dockerfile.read(text, "Dockerfile"), host or Host(), workdir=workdir)


START = "FROM debian:bookworm\nWORKDIR /app\n"


@pytest.mark.parametrize("text", [
    "FROM debian\nWORKDIR /app", "FROM ubuntu:24.04\nWORKDIR /app", "FROM docker.io/library/debian:12-slim\nWORKDIR /x",
    "FROM python:3.11-slim-bookworm\nWORKDIR /app", "FROM python:3\nWORKDIR /app",
    "FROM debian@sha256:abc\nWORKDIR /app", "FROM ghcr.io/laude-institute/t-bench/python-3-11:20250620",
    "FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:latest",
    START + "LABEL a=b\nEXPOSE 80\nCMD [\"sh\"]\nUSER root",
    START + "RUN apt-get update && apt-get install -y --no-install-recommends git curl=7.88 && "
            "rm -rf /var/lib/apt/lists/*",
    START + "RUN DEBIAN_FRONTEND=noninteractive apt install -y git; apt-get clean",
    START + "RUN pip install --no-cache-dir requests==2.31.0 pytest_cov", START + "RUN python3 -m pip install requests",
    START + "RUN set -eux; mkdir -p data/in /app/out && chmod +x x.sh", START + "ADD --chown=0:0 a.txt .",
])  # fmt: skip
def test_what_the_host_has_is_taken(text: str) -> None:
    assert check(text).workdir in ("/app", "/x")


@pytest.mark.parametrize(("text", "line", "word"), [
    ("FROM alpine\nWORKDIR /app", 1, "not of a distribution"),
    ("FROM python:3.12-alpine\nWORKDIR /app", 1, "alpine"),
    ("FROM scratch\nWORKDIR /app", 1, "not of a distribution"),
    ("FROM node:20\nWORKDIR /app", 1, "not of a distribution"),
    ("FROM python:3.13-slim\nWORKDIR /app", 1, "has Python 3.13, and this host 3.11"),
    ("FROM debian AS a\nFROM a\nWORKDIR /app", 1, "several stages"),
    ("FROM --platform=linux/arm64 debian\nWORKDIR /app", 1, "another platform"),
    (START + "RUN apt-get install -y git ripgrep", 3, "the host lacks ripgrep"),
    (START + "RUN apt-get install -y git=1:2.40", 3, "the host lacks git=1:2.40"),
    (START + "RUN apt-get upgrade -y", 3, "can't be done"),
    (START + "RUN pip install requests==2.0", 3, "lacks requests==2.0"),
    (START + "RUN pip install numpy", 3, "lacks numpy"),
    (START + "RUN pip install -r requirements.txt", 3, "needs a container engine"),
    (START + "RUN curl -LsSf https://example.com | sh", 3, "more than plain commands"),
    (START + "RUN echo hello > x", 3, "more than plain commands"), (START + "RUN make install", 3, "can't be done"),
    (START + "RUN rm -rf /nowhere", 3, "/nowhere would be removed"),
    (START + "RUN rm -rf /tmp/../nowhere", 3, "would be removed"),
    (START + "RUN <<E\nx\nE", 3, "needs a container engine"), (START + 'RUN ["make"]', 3, "needs a container engine"),
    (START + "RUN --mount=type=cache,target=/x true", 3, "needs a container engine"),
    (START + "RUN mkdir -p /data", 3, "outside"), (START + "RUN mkdir ../x", 3, "outside"),
    (START + "RUN chmod 777 *", 3, "can't be done"), (START + "RUN echo 'a", 3, "can't be read"),
    (START + "COPY a /etc/a", 3, "outside the working directory /app"),
    (START + "COPY --from=other a .", 3, "--from"), (START + "COPY --chown=agent a .", 3, "one user"),
    (START + "COPY a", 3, "must name a source"), (START + "ADD https://example.com/a .", 3, "fetched"),
    (START + "ADD a.tar.gz .", 3, "unpacked"), (START + "USER agent", 3, "no user 'agent'"),
    (START + 'ENTRYPOINT ["/start"]', 3, "can't be done"), (START + "VOLUME /data", 3, "can't be done"),
    (START + 'SHELL ["bash", "-c"]', 3, "can't be done"), (START + "ONBUILD RUN x", 3, "can't be done"),
    (START + "HEALTHCHECK CMD true", 3, "can't be done"),
])  # fmt: skip
def test_what_the_host_lacks_is_refused_by_line(text: str, line: int, word: str) -> None:
    with pytest.raises(UsageError, match=rf"Dockerfile:{line}: .*{word}") as told:
        check(text)
    assert "--image" in told.value.hint


def test_another_kind_of_host_and_no_working_folder_are_refused() -> None:
    with pytest.raises(UsageError, match="this host is fedora"):
        check(START, Host("fedora"))
    for text in ("FROM debian", "FROM debian\nWORKDIR /"):
        with pytest.raises(UsageError, match="no WORKDIR"):
            check(text)
    assert check("FROM debian", workdir="/work").workdir == "/work"


def test_variables_and_folders_are_honoured() -> None:
    found = check("ARG R=12\nFROM debian:$R\nARG N=app\nENV A=1\nENV B=$A$N\nWORKDIR /srv\nWORKDIR $N/${A:+one}\n")
    assert found.workdir == "/srv/app/one" and dict(found.environment) == {"A": "1", "B": "1app"}


@pytest.mark.parametrize("root", ["", "guess", "Host"])
def test_without_a_word_of_the_user_nothing_runs(root: str) -> None:
    with pytest.raises(UsageError, match="was not chosen") as told:
        rootfs.refuse_neither("task.toml", root)
    assert "--image" in told.value.hint and "--rootfs host" in told.value.hint


@pytest.mark.system
def test_this_host_is_asked() -> None:
    assert ThisHost().package("no-such-package") == "" and ThisHost().distribution("no-such-distribution") == ""
    assert ThisHost().family() or not os.path.exists("/etc/os-release")


# ---- what is laid


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    top = tmp_path / "context"
    (top / "data" / "deep").mkdir(parents=True)
    (top / "data" / "a.csv").write_text("a")
    (top / "data" / "deep" / "b.csv").write_text("b")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "tests").mkdir()
    (top / "tests" / "answer").write_text("42")
    os.symlink("data/a.csv", top / "link")
    return top


def lay(context: Path, *lines: str) -> Path:
    file = dockerfile.read(START + "\n".join(lines), "Dockerfile")
    laid = rootfs.check(file, Host())
    return Path(laying.workspace_of(file, laid, str(context), ("tests", "solution.sh")))


def tree(top: Path) -> dict[str, str]:
    found = {str(path.relative_to(top)): path for path in top.rglob("*")}
    return {name: os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text()
            for name, path in sorted(found.items())}  # fmt: skip


@pytest.mark.parametrize(("lines", "wanted"), [
    (["COPY data/a.csv ."], {"a.csv": "a"}),
    (["COPY data/a.csv other.csv"], {"other.csv": "a"}),
    (["COPY data ."], {"a.csv": "a", "deep": "", "deep/b.csv": "b"}),
    (["COPY data /app/data/"], {"data": "", "data/a.csv": "a", "data/deep": "", "data/deep/b.csv": "b"}),
    (["COPY data/*.csv run.sh in/"], {"in": "", "in/a.csv": "a", "in/run.sh": "#!/bin/sh\n"}),
    (["COPY link ."], {"link": "data/a.csv"}),
    (["RUN mkdir -p x/y", "COPY run.sh x/y"], {"x": "", "x/y": "", "x/y/run.sh": "#!/bin/sh\n"}),
    ([], {}),
])  # fmt: skip
def test_copies_are_laid_as_a_builder_lays_them(lines: list[str], wanted: dict[str, str], context: Path) -> None:
    assert tree(lay(context, *lines)) == wanted


@pytest.mark.parametrize("line", ["COPY second .", "COPY run.sh away", "COPY run.sh away/", "COPY data away",
                                  "COPY data away/new", "RUN mkdir away/new"])  # fmt: skip
def test_nothing_is_written_through_a_link_that_an_earlier_copy_laid(line: str, context: Path, tmp_path: Path) -> None:
    """The task is anybody's, and who lays it may be root."""
    outside = tmp_path / "outside"
    for folder in (outside, context / "first", context / "second" / "away"):
        folder.mkdir(parents=True)
    (context / "first" / "away").symlink_to(outside)
    (context / "second" / "away" / "file").write_text("x")
    with pytest.raises(UsageError, match="points outside the workspace"):
        lay(context, "COPY first .", line)
    assert not os.listdir(outside)


def test_modes_are_set_and_the_same_is_laid_once(context: Path) -> None:
    lines = ("COPY --chmod=755 run.sh .", "COPY data/a.csv .", "RUN chmod u+x a.csv")
    first = lay(context, *lines)
    assert os.stat(first / "run.sh").st_mode & 0o777 == 0o755 and os.access(first / "a.csv", os.X_OK)
    assert lay(context, *lines) == first
    assert [name for name in os.listdir(first.parent) if name.startswith(".")] == []


@pytest.mark.parametrize(("line", "word"), [
    ("COPY ../secret .", "is outside the context"), ("COPY up/secret .", "not in the context"),
    ("COPY tests .", "the task's own files"), ("COPY tests/answer .", "the task's own files"),
    ("COPY . .", "the task's own files"), ("COPY t* .", "the task's own files"),
    ("COPY absent .", "not in the context"), ("COPY data .", "is not a file"),
    ("COPY data/out out\nCOPY run.sh out/planted", "points outside the workspace"),
    ("COPY data/out out\nRUN mkdir out/planted", "points outside the workspace"),
    ("RUN chmod 755 absent", "not in the workspace"),
])  # fmt: skip
def test_a_hostile_context_reaches_nothing_of_the_host(line: str, word: str, context: Path) -> None:
    outside = context.parent / "outside"
    outside.mkdir()
    (context.parent / "secret").write_text("of the host")
    os.symlink("..", context / "up")
    os.symlink(outside, context / "data" / "out")
    os.mkfifo(context / "data" / "pipe")
    with pytest.raises(UsageError, match=word):
        lay(context, *line.split("\n"))
    assert os.listdir(outside) == []


def test_a_list_of_what_is_left_out_takes_an_engine(context: Path) -> None:
    (context / ".dockerignore").write_text("*.csv")
    assert tree(lay(context)) == {}
    with pytest.raises(UsageError, match=r"\.dockerignore: .* is not supported here"):
        lay(context, "COPY run.sh .")
