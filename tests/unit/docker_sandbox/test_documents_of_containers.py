"""docs/how-to/containers, the dashboard and the alert rules against the code: every key, metric and event is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from ringfence.docker_sandbox import gate
from ringfence.docker_sandbox.config import EMERGENCY, DockerConfig
from ringfence.docker_sandbox.config_keys import KEYS
from ringfence.docker_sandbox.result import StrategyStatus
from ringfence.errors import PolicyError
from ringfence.metrics import known_series
from ringfence.metrics.table import METRICS
from ringfence.service.figures import COUNTERS, GAUGES

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = ROOT / "docs" / "how-to" / "containers"
SOURCES = "".join(path.read_text() for path in (ROOT / "src" / "ringfence" / "docker_sandbox").glob("*.py"))
EVENTS = {*re.findall(r'tell\("([a-z_]+)"', SOURCES)}
SERIES = {name for metric in METRICS for name in metric.series} | {*COUNTERS, *GAUGES}
_WORD = re.compile(r"[a-z][a-z_]+(?=[\[{)\s]|$)")


def rows(name: str) -> list[list[str]]:
    lines = (DOCUMENTS / name).read_text().splitlines()
    table = [line for line in lines if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def test_the_reference_of_the_configuration_is_the_table_in_the_code() -> None:
    expected = [[f"`{key.path}`", f"`{shown(getattr(DockerConfig(), key.field))}`", f"`{key.variable}`", key.help]
                for key in KEYS]  # fmt: skip
    assert rows("configuration.md") == expected


def test_the_table_of_metrics_is_that_in_the_code() -> None:
    expected = [[f"`{metric.name}`", metric.kind, ", ".join(metric.labels) or "-", metric.help] for metric in METRICS]
    assert rows("monitoring.md") == expected


def test_the_table_of_the_services_metrics_is_that_in_the_code() -> None:
    lines = (ROOT / "docs" / "reference" / "service.md").read_text().splitlines()
    counters = [f"| `{name}` | counter | {', '.join(labels) or '-'} | {told} |"
                for name, (told, labels) in COUNTERS.items()]  # fmt: skip
    gauges = [f"| `{name}` | gauge | - | {told} |" for name, told in GAUGES.items()]
    assert [line for line in lines if line.startswith("| `ringfence_service_")] == counters + gauges


def test_every_event_is_listed() -> None:
    told = (DOCUMENTS / "monitoring.md").read_text().rpartition("Events: ")[2]
    assert {*re.findall("`([a-z_]+)`", told)} == EVENTS


def test_the_table_of_errors_names_statuses_metrics_and_events_that_exist() -> None:
    table = rows("errors.md")
    statuses = {row[1].strip("`") for row in table if row[1].startswith("`")}
    assert statuses == {*map(str, StrategyStatus)} - {"ok"}
    assert {name for row in table for name in re.findall("`([a-z_]+)`", row[3])} <= {each.name for each in METRICS}
    assert all(row[3] for row in table)
    assert {name for row in table for name in re.findall("`([a-z_]+)`", row[4])} <= EVENTS


def asked(expression: str) -> set[str]:
    """The series that an expression of Prometheus asks for."""
    plain = re.sub(r"by \([^)]*\)", "", expression)
    functions = {"sum", "max", "rate", "increase", "histogram_quantile"}
    return {word for word in _WORD.findall(plain) if word not in functions}


def alerts() -> list[str]:
    told = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    return [rule["expr"] for group in told["groups"] for rule in group["rules"]]


def panels() -> list[str]:
    told = json.loads((ROOT / "deploy" / "grafana" / "ringfence.json").read_text())
    return [target["expr"] for panel in told["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", [*alerts(), *panels()])
def test_an_expression_asks_for_metrics_that_exist(expression: str) -> None:
    found = asked(expression)
    assert found and found <= SERIES, found - SERIES


@pytest.mark.parametrize("expression", [*alerts(), *panels()])
def test_two_series_are_divided_only_with_the_same_labels(expression: str) -> None:
    """Series with other labels do not match in Prometheus, and the quotient is empty: such an alert never fires."""
    sums = [re.match(r"\s*(sum(?: by \([^)]*\))?) \(", part) for part in expression.split(" / ")]
    if len(sums) > 1:
        assert all(sums) and len({found[1] for found in sums if found}) == 1, expression


def test_the_check_sees_a_metric_that_is_not_there() -> None:
    assert asked("rate(no_such_metric_total[5m]) > 1") == {"no_such_metric_total"}


def test_the_dashboard_shows_every_metric() -> None:
    shown_series = {name for expression in panels() for name in asked(expression)}
    assert [metric.name for metric in METRICS if not shown_series & {*metric.series}] == []


def test_the_alert_on_orphans_and_on_fallbacks_is_there() -> None:
    together = " ".join(alerts())
    assert "orphaned_containers_alert" in together and "docker_fallback_total" in together


def test_what_an_alert_asks_for_is_shown_before_its_first_event() -> None:
    wanted = {name for expression in alerts() for name in asked(expression)}
    events = {metric.name for metric in METRICS if metric.kind != "gauge" and wanted & {*metric.series}}
    assert events == {*known_series.KNOWN}


def test_the_known_values_of_labels_are_those_of_the_code() -> None:
    assert {*known_series.STRATEGY_STATUSES} == {*map(str, StrategyStatus)}
    assert {*known_series.REJECTED} == {*gate.CATEGORIES, gate.OTHER}
    assert {*known_series.NOT_CREATED} == {*re.findall(r'^_IMAGE, _CREATE = "(\w+)", "(\w+)"$', SOURCES, re.M)[0]}
    assert {*known_series.STRATEGY_RESOURCES} == {*re.findall(r'self\._limit\("(\w+)"', SOURCES)}
    assert {*known_series.FALLBACK_LEVELS} == {level for level in known_series.LEVELS if is_a_fallback(level)}


def is_a_fallback(level: str) -> bool:
    try:
        DockerConfig(fallback_level=level)
    except PolicyError:
        return False
    return True


def test_the_emergency_procedure_names_the_switch_that_is_tested() -> None:
    assert f"export {EMERGENCY}=false" in (DOCUMENTS / "emergency.md").read_text()


def test_links_between_the_documents_lead_somewhere() -> None:
    for path in DOCUMENTS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / link).exists() or link == "../validator.md", f"{path.name}: {link}"
