"""What ``ringfence selfcheck`` prints of findings: what is unproven counts as held, and is counted."""

from __future__ import annotations

from argparse import Namespace

import pytest

from ringfence.backends import conformance
from ringfence.backends.conformance import CHECKS, Finding
from ringfence.cli import selfcheck

PROVEN = Finding(check=CHECKS[0], held=True, proven=True)
UNPROVEN = Finding(check=CHECKS[1], held=True, proven=False)
BROKEN = Finding(check=CHECKS[2], held=False, proven=False, problem="it got out")


@pytest.mark.parametrize(
    ("findings", "last", "code"),
    (
        ([PROVEN], "1 of 1 promises held on level process", 0),
        ([PROVEN, UNPROVEN], "2 of 2 promises held on level process, 1 of them unproven", 0),
        ([UNPROVEN, BROKEN], "1 of 2 promises held on level process, 1 of them unproven", 1),
    ),
)
def test_the_last_line_counts_what_is_unproven_apart(
    findings: list[Finding], last: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance, "perform", lambda *_, **__: iter(findings))
    assert selfcheck.execute(Namespace(level="process", json=False)) == code
    assert capsys.readouterr().out.splitlines()[-1] == last
