"""Dockerfiles are read strictly: what each instruction says, and by file and line what is wrong."""

from __future__ import annotations

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.foreign import dockerfile
from ringfence.proctor.foreign.dockerfile import Dockerfile

WHOLE = """# syntax=docker/dockerfile:1
# escape=\\

ARG TAG=bookworm
FROM --platform=linux/amd64 debian:${TAG} AS base
run apt-get update && \\
    # a comment in the middle

    apt-get install -y \\
      git
ENV A=1 B="two words" C=it\\'s D='$A' E=$A
ENV OLD the whole rest
COPY --chmod=755 --chown=root a.sh "b c" /app/
COPY ["x y", "/app/"]
RUN <<ONE cat && <<-'TWO' cat
first $A
ONE
\tsecond
\tTWO
RUN echo "<<<" ; cat <<< word
WORKDIR /app
CMD ["sleep", "infinity"]
"""


def read(text: str) -> Dockerfile:
    return dockerfile.read(text, "Dockerfile")


def test_every_form_is_read() -> None:
    found = read(WHOLE)
    assert [(each.name, each.line) for each in found.instructions] == [
        ("ARG", 4), ("FROM", 5), ("RUN", 6), ("ENV", 11), ("ENV", 12), ("COPY", 13), ("COPY", 14), ("RUN", 15),
        ("RUN", 20), ("WORKDIR", 21), ("CMD", 22),
    ]  # fmt: skip
    assert dockerfile.stages(found) == (("debian:bookworm", "base"),)
    run, more = found.named("RUN")[:2]
    assert run.text.split() == ["apt-get", "update", "&&", "apt-get", "install", "-y", "git"]
    assert [(each.name, each.text, each.is_plain) for each in more.heredocs] == [
        ("ONE", "first $A\n", False), ("TWO", "second\n", True),
    ]  # fmt: skip
    plain, old = found.named("ENV")
    assert dockerfile.assignments(found, plain, {"A": "0"}) == {
        "A": "1", "B": "two words", "C": "it's", "D": "$A", "E": "0",
    }  # fmt: skip
    assert dockerfile.assignments(found, old, {}) == {"OLD": "the whole rest"}
    copied, listed = found.named("COPY")
    assert copied.flags == (("chmod", "755"), ("chown", "root")) and listed.words() == ("x y", "/app/")
    assert found.named("CMD")[0].words() == ("sleep", "infinity") and copied.words() is None


def test_another_sign_may_join_lines() -> None:
    found = read("# escape=`\nFROM a\nRUN dir `\n  C:\\\n")
    assert found.named("RUN")[0].text == "dir   C:\\"
    assert read("FROM a\r\nRUN b\r\n").named("RUN")[0].text == "b"


@pytest.mark.parametrize(("text", "line", "word"), [
    ("", 1, "must begin with FROM"), ("RUN x", 1, "must begin with FROM"), ("# only this\n", 1, "must begin with FROM"),
    ("FROM a\nINSTALL b", 2, "'INSTALL' is not a Dockerfile"), ("FROM a\n\nRUN", 3, "has no arguments"),
    ("FROM a\nRUN <<E\nnever", 2, "E is not closed"),
    ("# escape=x\nFROM a", 1, "escape"), ("FROM a b", 1, "IMAGE AS NAME"),
    ("FROM a\nENV A", 2, "sets no variable"), ("FROM a\nENV A=1 B", 2, "not a NAME=value"),
    ("FROM a\nENV 1A=2", 2, "not a NAME"), ("FROM a\nENV A='x", 2, "quote is not closed"),
    ("FROM a\nARG a-b", 2, "not a NAME"),
])  # fmt: skip
def test_what_is_wrong_is_said_by_file_and_line(text: str, line: int, word: str) -> None:
    with pytest.raises(UsageError, match=rf"Dockerfile:{line}: .*{word}"):
        _read_all(text)


def _read_all(text: str) -> None:
    found = read(text)
    dockerfile.stages(found)
    for each in found.named("ENV"):
        dockerfile.assignments(found, each, {})
    for each in found.named("ARG"):
        dockerfile.declared(found, each, {})
