"""Metrics are counted when somebody asks for them, for every level the same, and cost nothing else."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.metrics import life_log, recorder, runs, serving
from ringfence.metrics.table import METRICS
from ringfence.model.outcome import Outcome, Status, Usage

THE_ISSUES = {
    "active_containers", "docker_fallback_total", "container_creation_failed_total", "execution_timeout_total",
    "security_rejections_total", "orphaned_containers", "orphaned_containers_alert", "resource_limit_exceeded_total",
}  # fmt: skip


def told(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


def test_every_metric_of_the_specification_is_there_once() -> None:
    names = [metric.name for metric in METRICS]
    assert {*names} >= THE_ISSUES and len(names) == len({*names})
    assert all((metric.kind == "counter") == metric.name.endswith("_total") and metric.help for metric in METRICS)


def test_a_run_is_counted_with_its_level_its_time_and_its_limits() -> None:
    recorder.enable()
    before = recorder.value("executions_total", isolation="x", status="TIMEOUT")
    ended = runs.begin("x")
    assert recorder.value("active_containers", isolation="x") == 1
    usage = Usage(wall_s=2.0)
    ended(Outcome(status=Status.TIMEOUT, rc=1, reason="", usage=usage, limits_hit=("wall_time", "memory")))
    assert recorder.value("active_containers", isolation="x") == 0
    assert recorder.value("executions_total", isolation="x", status="TIMEOUT") == before + 1
    assert recorder.value("execution_timeout_total", isolation="x") == 1
    assert recorder.value("execution_timeout_duration_seconds_sum", isolation="x") == 2
    assert recorder.value("execution_duration_seconds_sum", isolation="x") == 2
    assert recorder.value("resource_limit_exceeded_total", isolation="x", resource="memory") == 1
    assert recorder.value("start_latency_seconds_count", isolation="x") == 1


def test_a_run_that_is_lost_is_no_longer_active() -> None:
    recorder.enable()
    runs.begin("y")(None)
    assert recorder.value("active_containers", isolation="y") == 0
    assert recorder.value("executions_total", isolation="y", status=runs.LOST) == 1


def test_figures_are_served_on_loopback() -> None:
    served = serving.serve(0)
    try:
        recorder.add("docker_fallback_total", level="strict")
        assert 'docker_fallback_total{level="strict"}' in told(served.port)
        with pytest.raises(UsageError, match="in use"):
            serving.serve(served.port)
    finally:
        served.close()


def python(code: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                          check=True).stdout  # fmt: skip


RUN = "import ringfence; ringfence.run(['true'], ringfence.SandboxPolicy(isolation='{}', allow_partial=True)); "


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("level", ["process", "strict", "none"])
def test_runs_of_every_level_are_counted_where_somebody_asks(level: str) -> None:
    code = RUN.format(level) + (
        "from ringfence.metrics import recorder as r; "
        f"print(r.value('executions_total', isolation='{level}', status='OK'), "
        f"r.value('execution_duration_seconds_count', isolation='{level}'), "
        f"r.value('active_containers', isolation='{level}'))"
    )
    assert python(code, RINGFENCE_METRICS="on") == "1.0 1.0 0.0\n"


@pytest.mark.system
def test_without_metrics_nothing_of_them_is_loaded() -> None:
    code = RUN.format("process") + "import sys; print([m for m in sys.modules if 'metrics' in m or 'prometheus' in m])"
    assert python(code, RINGFENCE_METRICS="") == "[]\n"
    variables = {name: value for name, value in os.environ.items() if name != "RINGFENCE_METRICS"}
    done = subprocess.run([sys.executable, "-c", code], env={**variables, "PYTHONPATH": os.pathsep.join(sys.path)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "[]\n"


def test_two_who_ask_at_once_both_get_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removes the gauges of the dead, and finds some that the other has removed since it looked."""
    dead = 4194305  # more than any process has as its number
    names = [f"gauge_livesum_{dead}.db", f"gauge_livemax_{dead}.db"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    remove = os.remove
    monkeypatch.setattr(os, "remove", lambda path: (remove(path), remove(path)))
    serving.forget_dead(str(tmp_path))
    monkeypatch.undo()
    serving.forget_dead(str(tmp_path))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.system
def test_processes_that_count_in_a_folder_are_added_up(tmp_path: Path) -> None:
    folder = str(tmp_path / "figures")
    for _ in range(2):
        python(RUN.format("process"), RINGFENCE_METRICS=folder)
    assert oct((tmp_path / "figures").stat().st_mode & 0o777) == "0o700"
    command = [sys.executable, "-m", "ringfence", "metrics", "serve", "--folder", folder]
    environment = {**os.environ, "RINGFENCE_MONITORING__PROMETHEUS_PORT": str(_free_port())}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        with urllib.request.urlopen(server.stdout.readline().strip()) as answer:
            shown = answer.read().decode()
        assert 'executions_total{isolation="process",status="OK"} 2.0' in shown
        assert 'active_containers{isolation="process"}' not in shown, "those of the dead count no more"
    finally:
        server.terminate()
        server.communicate()


SERVED = """
import urllib.request
from ringfence.metrics import recorder, serving
served = serving.serve(0, folder={!r})
recorder.add("docker_fallback_total", level="strict")
print(urllib.request.urlopen(f"http://127.0.0.1:{{served.port}}/metrics").read().decode())
served.close()
"""


@pytest.mark.system
@pytest.mark.parametrize("where", ["", "figures"])
def test_a_server_shows_what_alerts_ask_for_before_the_first_event(tmp_path: Path, where: str) -> None:
    """Prometheus sees no increase in a counter that first appears at 1."""
    shown = python(SERVED.format(where and str(tmp_path / where)), RINGFENCE_METRICS="").splitlines()
    assert {'docker_fallback_total{level="strict"} 1.0', 'docker_fallback_total{level="process"} 0.0',
            'container_creation_failed_total{reason="image"} 0.0', 'security_rejections_total{reason="other"} 0.0',
            'execution_timeout_total{isolation="none"} 0.0', 'executions_total{isolation="container",status="ok"} 0.0',
            'executions_total{isolation="strict",status="LOST"} 0.0',
            'resource_limit_exceeded_total{isolation="process",resource="memory"} 0.0',
            'start_latency_seconds_bucket{isolation="container",le="+Inf"} 0.0'} <= {*shown}  # fmt: skip


@pytest.mark.system
def test_a_process_that_only_counts_keeps_no_series_of_nothing() -> None:
    code = "from ringfence.metrics import recorder as r; r.enable(); r.add('docker_fallback_total', level='strict'); "
    code += "print([s.labels for m in r.registry().collect() for s in m.samples if s.name == 'docker_fallback_total'])"
    assert python(code, RINGFENCE_METRICS="on") == "[{'level': 'strict'}]\n"


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_line_of_the_log_is_json_with_the_trace_id(capsys: pytest.CaptureFixture[str]) -> None:
    handler = life_log.write_json_lines()
    try:
        with life_log.traced("abc") as name:
            assert name == life_log.trace_id() == "abc"
            life_log.tell("container_created", container_id="1", words="a\x1b\n\ud800")
            life_log.tell("hidden", level=logging.DEBUG)
        with life_log.traced():
            assert len(life_log.trace_id()) == 32
        assert life_log.trace_id() == ""
        try:
            raise ValueError("x")
        except ValueError:
            logging.getLogger(life_log.LOGGER).exception("plain")
    finally:
        logger = logging.getLogger(life_log.LOGGER)
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = True
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["event"], first["trace_id"], first["container_id"]) == ("container_created", "abc", "1")
    assert first["level"] == "INFO" and first["time"].endswith("Z")
    assert second["message"] == "plain" and "ValueError" in second["exception"]


def test_metrics_serve_wants_a_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from ringfence.cli import main

    monkeypatch.delenv("RINGFENCE_METRICS", raising=False)
    assert main(["metrics", "serve"]) == 2
    assert "--folder" in capsys.readouterr().err
