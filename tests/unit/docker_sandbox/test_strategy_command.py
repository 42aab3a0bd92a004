"""``ringfence strategy run``: each thing is said once, and with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.cli import main

STRATEGY = "def run(data):\n    return {}\n"


@pytest.mark.parametrize(("code", "word", "exit_code"), [
    (STRATEGY, "unavailable", 2), ("import socket\n" + STRATEGY, "rejected", 1),
])  # fmt: skip
def test_what_went_wrong_is_one_line(
    code: str, word: str, exit_code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strategy.py").write_text(code)
    assert main(["strategy", "run", "strategy.py"]) == exit_code
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"ringfence: {word}: ") and (exit_code == 1 or "or set DOCKER_HOST" in line)


@pytest.mark.system
def test_a_fallback_is_told_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    monkeypatch.setenv("RINGFENCE_DOCKER__FALLBACK_TO_DIRECT", "true")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strategy.py").write_text(STRATEGY)
    assert main(["strategy", "run", "strategy.py"]) == 0
    assert capfd.readouterr().err.splitlines() == ["ringfence: Docker unavailable, falling back to STRICT (UNSAFE)"]
