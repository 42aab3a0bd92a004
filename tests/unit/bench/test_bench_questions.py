"""Every question of the bench is asked for real, as short as it goes, so that none rots. No time is asserted."""

from __future__ import annotations

import json
import math
import os
import pkgutil
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.system, pytest.mark.unmeasured, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]
NOT_QUESTIONS = {
    "__main__", "contenders", "docker_engine", "egress_server", "harness", "image", "installing", "peers", "picture",
    "process_tree", "ray_cluster",
    "report", "standing", "without_helper",
}  # fmt: skip
# By name, so that a module that asks nothing is found out: it is no question to the bench.
QUESTIONS = sorted({module.name for module in pkgutil.iter_modules([str(ROOT / "bench")])} - NOT_QUESTIONS)
# What only a pool or an installed peer can answer: there may be nobody.
MAY_HAVE_NO_ROW = {"container", "thousand_idle", "tripwire_setup", "validator_packages"}


def bench(*words: str, results: Path) -> subprocess.CompletedProcess[str]:
    """As a user calls it; nothing is installed for a test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment = kept | {"RINGFENCE_BENCH_INSTALL": "0", "XDG_CACHE_HOME": str(results / "cache")}
    command = [sys.executable, "-m", "bench", "--effort", "tiny", "--results", str(results), *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_with_a_table_a_file_and_a_picture(question: str, tmp_path: Path) -> None:
    done = bench(question, results=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads((tmp_path / f"{question}.json").read_text())
    rows = [row for table in answer["tables"] for row in table["rows"]]
    assert rows or (question in MAY_HAVE_NO_ROW and answer["skipped"])
    for row in rows:
        assert row["low"] <= row["high"]
        assert all(math.isfinite(row[name]) for name in ("median", "low", "high"))
        assert row["name"] in done.stdout
    for name, why in answer["skipped"].items():
        assert f"not here: {name}: {why}" in done.stdout
        assert why
    drawn = "".join(ElementTree.parse(tmp_path / f"{question}.svg").getroot().itertext())
    assert all(row["name"] in drawn for row in rows)


def test_an_answer_tells_where_it_was_measured_and_not_on_whose_machine(tmp_path: Path) -> None:
    done = bench("bin_true", results=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    text = (tmp_path / "bin_true.json").read_text()
    told = json.loads(text)["environment"]
    assert {"kernel", "cpu", "cores", "python", "ringfence", "load", "load_at_end", "date", "versions"} <= set(told)
    for private in (str(ROOT), str(Path.home()), f'"{socket.gethostname()}"'):
        assert private not in text


def test_an_unknown_question_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = bench("how_tall_is_it", results=tmp_path)
    assert done.returncode == 2
    assert "how_tall_is_it" in done.stderr
    assert "python_snippet" in done.stderr
    assert not list(tmp_path.glob("*.json"))
