"""Tables, pages, pictures and files of other programs: what they say, and that no name gets out of its place."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import suite_samples as s

from ringfence.proctor.suite import harbor_layout
from ringfence.proctor.suite.entry import State
from ringfence.proctor.suite.index_page import page
from ringfence.proctor.suite.junit import junit
from ringfence.proctor.suite.plot import MOST_ROWS, picture
from ringfence.proctor.suite.progress import Count, SuiteProgress, bar
from ringfence.proctor.suite.results import as_dict, cost_of, document, summary_of
from ringfence.proctor.suite.table import table

ROWS = (
    s.row("a"),
    s.row("b", passed=False, score=0.0),
    s.row("c", status="compromised", violations=2, score=0.0),
    s.row("d", reward=0.5, score=0.5),
    s.without("e"),
)
HOSTILE = (s.row(s.HOSTILE), s.without(s.HOSTILE + "2", error=s.HOSTILE))


def test_a_summary_counts_every_task_once() -> None:
    told = summary_of(ROWS)
    assert [told[name] for name in ("tasks", "verdicts", "passed", "failed", "compromised", "without_verdict")] == [
        5, 4, 2, 1, 1, 1]  # fmt: skip
    assert told["mean_score"] == pytest.approx(0.3)
    assert summary_of(())["mean_score"] == 0.0


def test_a_task_without_a_verdict_has_no_pass_and_one_without_a_reward_no_reward() -> None:
    told = {each["id"]: each for each in document(ROWS, agent="x", suite=s.SUITE, public_key="k")["tasks"]}
    assert "pass" not in told["e"] and "status" not in told["e"] and told["e"]["error"] == "the disk is full"
    assert "reward" not in told["a"] and told["d"]["reward"] == 0.5 and told["a"]["pass"] is True


def test_a_cost_is_summed_over_phases_and_memory_is_the_most() -> None:
    phases = [{"wall_ms": 1000, "usage": {"cpu_ms": 300, "peak_memory_bytes": 7, "network_bytes": 5}},
              {"wall_ms": 500, "usage": {"cpu_ms": 200, "peak_memory_bytes": 3, "network_bytes": 6}},
              {"wall_ms": 1, "usage": {}}]  # fmt: skip
    cost = cost_of(phases)
    assert (cost.cpu_s, cost.wall_s, cost.memory_bytes, cost.egress_bytes) == (0.5, 1.501, 7, 11)


def test_junit_has_failures_and_errors_apart() -> None:
    whole = ElementTree.fromstring(junit(ROWS, "my suite"))
    assert (whole.get("tests"), whole.get("failures"), whole.get("errors")) == ("5", "2", "1")
    found = {case.get("name"): [child.tag for child in case] for case in whole.iter("testcase")}
    assert found["a"] == ["system-out"] and found["e"] == ["error", "system-out"]
    assert found["b"] == found["c"] == ["failure", "system-out"]


def test_no_name_breaks_out_of_junit() -> None:
    text = junit(HOSTILE, s.HOSTILE)
    whole = ElementTree.fromstring(text)
    assert len([*whole.iter("testcase")]) == 2 and not [*whole.iter("script")]
    assert "\x1b" not in text and "\u202e" not in text


def test_no_name_breaks_out_of_the_picture() -> None:
    text = picture(HOSTILE, s.HOSTILE)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert tags == {"svg", "rect", "text", "line"}
    assert "\x1b" not in text and "\u202e" not in text


def test_the_picture_is_bounded_and_asks_for_nothing() -> None:
    text = picture([s.row(str(number)) for number in range(MOST_ROWS + 7)], "many")
    assert "and 7 more" in text and re.findall("href|src|url", text) == []
    assert text.count("http") == 1  # the name space


def test_no_name_breaks_out_of_the_page() -> None:
    text = page(HOSTILE, title=s.HOSTILE, agent=s.HOSTILE, public_key="k")
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    assert "default-src 'none'" in text
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert links == [f"tasks/{HOSTILE[0].folder}/report.html"]


def test_the_page_links_to_the_report_of_each_task_that_has_one() -> None:
    text = page(ROWS, title="t", agent="x", public_key="k")
    assert re.findall(r'href="([^"]*)"', text) == [f"tasks/{name}/report.html" for name in "abcd"]
    assert "the disk is full" in text


def test_no_name_moves_a_cursor_in_the_table() -> None:
    lines = table(HOSTILE).splitlines()
    assert all(line.isprintable() for line in lines) and len(lines) == 5
    assert "2 tasks: 1 passed, 0 failed, 0 compromised, 1 without a verdict" in lines[-1]


# ---- Harbor's layout


def _job(tmp_path: Path, rows: tuple[object, ...]) -> Path:
    for row in ROWS:
        (tmp_path / "tasks" / row.folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks" / row.folder / "grader.stdout").write_text("1 passed\n")
    entries = {row.id: s.entry(row.id) for row in rows}  # type: ignore[attr-defined]
    harbor_layout.write_job(str(tmp_path), rows, entries, agent="my-agent", suite=s.SUITE)  # type: ignore[arg-type]
    return tmp_path / "harbor"


def test_what_reads_harbors_jobs_finds_every_trial_with_its_reward(tmp_path: Path) -> None:
    job = _job(tmp_path, ROWS)
    trials = {trial["task_name"]: trial for trial in map(json.loads, (
        path.read_text() for path in sorted(job.glob("*/result.json"))))}  # fmt: skip
    assert {name: (trial["verifier_result"] or {}).get("rewards", {}).get("reward") for name, trial in trials.items()
            } == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.5, "e": None}  # fmt: skip
    assert trials["e"]["exception_info"]["exception_type"] == "InfrastructureError"
    assert trials["a"]["exception_info"] is None
    worked = trials["a"]["agent_execution"]
    assert (worked["started_at"][:19], worked["finished_at"][:19]) == ("2026-01-02T03:04:09", "2026-01-02T03:04:14")
    folder = job / trials["a"]["trial_name"]
    assert (folder / "verifier" / "reward.txt").read_text() == "1\n"
    assert (folder / "verifier" / "test-stdout.txt").read_text() == "1 passed\n"
    assert json.loads((folder / "config.json").read_text())["agent"] == {"name": "my-agent"}


def test_harbors_job_counts_trials_errors_and_rewards(tmp_path: Path) -> None:
    told = json.loads((_job(tmp_path, ROWS) / "result.json").read_text())
    about = told["stats"]["evals"]["my-agent__adhoc"]
    assert (told["n_total_trials"], about["n_trials"], about["n_errors"]) == (5, 5, 1)
    assert {key: len(names) for key, names in about["reward_stats"]["reward"].items()} == {"1.0": 1, "0.0": 2, "0.5": 1}
    assert about["metrics"] == [{"mean": pytest.approx(0.3)}]


def test_an_earlier_job_of_other_tasks_is_gone_and_no_id_is_a_path(tmp_path: Path) -> None:
    _job(tmp_path, ROWS)
    job = _job(tmp_path, (s.row("../../out"),))
    folders = [path for path in job.iterdir() if path.is_dir()]
    assert len(folders) == 1 and folders[0].parent == job
    assert sorted(path.name for path in tmp_path.iterdir()) == ["harbor", "tasks"]


# ---- progress


def test_the_bar_tells_done_running_passed_compromised_and_time_left() -> None:
    now = Count(total=10, slots=4, done=5, passed=3, compromised=1, elapsed_s=50)
    assert bar(now, 200) == "[##########..........] 5/10   running 4   passed 3   compromised 1   left 0:50"
    assert len(bar(now, 30)) <= 30
    assert "left" not in bar(Count(total=10, slots=4), 200)
    assert "running 1" in bar(Count(total=10, slots=4, done=9), 200)


def test_what_was_done_before_says_nothing_about_the_time_left() -> None:
    now = Count(total=10, slots=1).with_row(s.row(reused=True))
    assert (now.done, now.left_s) == (1, None)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _told(stream: io.StringIO, **how: bool) -> str:
    progress = SuiteProgress(stream, now=iter(range(1000)).__next__, **how)
    progress.begin(2, 2)
    progress.wait()
    progress.again(s.without("e"))
    for row in HOSTILE:
        progress.end(row)
    progress.close()
    return stream.getvalue()


def test_a_terminal_gets_a_bar_and_a_line_for_what_has_no_verdict() -> None:
    told = _told(_Terminal())
    assert told.count("\n") == 3 and "2/2" in told.rpartition("\r")[2]
    assert "\x1b[2J" not in told and "\u202e" not in told


def test_elsewhere_each_task_gets_a_line() -> None:
    told = _told(io.StringIO())
    assert [line.split()[0] for line in told.splitlines()] == ["0/2", "0/2", "1/2", "2/2"]
    assert told.replace("\n", "").isprintable() and "once more" in told


def test_machines_get_json() -> None:
    events = [json.loads(line) for line in _told(io.StringIO(), as_json=True).splitlines()]
    assert [event["event"] for event in events] == ["suite", "retry", "result", "result"]
    assert events[2]["id"] == s.HOSTILE and events[2]["pass"] is True and "pass" not in events[3]


def test_a_reader_that_goes_away_costs_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    progress = SuiteProgress(stream, live=False)
    progress.begin(1, 1)
    progress.end(s.row())


def test_a_row_is_plain_data() -> None:
    assert json.loads(json.dumps(as_dict(s.without("x", State.CANCELLED))))["state"] == "cancelled"
