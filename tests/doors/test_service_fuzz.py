"""Requests made of the OpenAPI document, right and spoiled: no 500, and each answer is one that it promises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st
from tests.service_server import QUICK, Here, ask, running, settings

from ringfence.client import Client
from ringfence.service.openapi import document
from ringfence.service.routes import EVENTS, ROUTES
from ringfence.service.schema import told
from ringfence.service.settings import NamedPolicy

pytestmark = [pytest.mark.unmeasured, pytest.mark.once, pytest.mark.slow]
EXAMPLES = 2000 if os.environ.get("RINGFENCE_LONG") else 150
DOCUMENT = document()
ODD = ["true", "echo", "/", "..", "\0", "a" * 5000, "default", "é", "\ud800", "-1"]
TEXTS = st.text(max_size=12) | st.sampled_from(ODD)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6,
)  # fmt: skip
OPERATIONS = [(path, method, each) for path, methods in DOCUMENT["paths"].items() for method, each in methods.items()]


def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a shape, as far as its words say."""
    if "oneOf" in schema:
        return st.one_of([of_schema(each) for each in schema["oneOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        known = {name: of_schema(each) for name, each in schema.get("properties", {}).items()}
        needed = schema.get("required", [])
        rest = schema.get("additionalProperties")
        if isinstance(rest, dict):
            return st.dictionaries(TEXTS, of_schema(rest), max_size=3)
        required = {name: known[name] for name in needed if name in known}
        others = {name: each for name, each in known.items() if name not in needed}
        return st.fixed_dictionaries(required, optional=others)
    if kind == "array":
        return st.lists(of_schema(schema.get("items", {})), min_size=schema.get("minItems", 0), max_size=4)
    if kind == "string":
        if schema.get("pattern", "").startswith("^[0-9a-f]{24}"):
            return st.text("0123456789abcdef", min_size=24, max_size=24)
        return st.sampled_from(["default", "small", "a"]) if "pattern" in schema else TEXTS
    low, high = schema.get("minimum", -(2**40)), schema.get("maximum", 2**40)
    simple = {"boolean": st.booleans(), "integer": st.integers(int(low), int(high)), "null": st.none(),
              "number": st.floats(low, high, allow_nan=False)}  # fmt: skip
    return simple.get(str(kind), ANYTHING)


@st.composite
def requests(draw: Any) -> tuple[str, str, str, Any, dict[str, str]]:
    path, method, operation = draw(st.sampled_from(OPERATIONS))
    made, query, headers = path, [], {}
    for each in operation["parameters"]:
        value = draw(of_schema(each["schema"]) | TEXTS)
        text = str(value).encode("utf-8", "replace").decode()
        if each["in"] == "path":
            put = f"@{each['name']}@" if draw(st.booleans()) else quote(text, safe="")
            made = made.replace(f"{{{each['name']}}}", put)
        elif each["in"] == "query" and draw(st.booleans() | st.just(each["required"])):
            query.append(f"{each['name']}={quote(text, safe='')}")
        elif each["in"] == "header" and draw(st.booleans()):
            headers[each["name"]] = "".join(char for char in text if " " <= char <= "~")[:2000]
    content = operation.get("requestBody", {}).get("content", {})
    body: Any = None
    if "application/json" in content:
        body = draw(of_schema(content["application/json"]["schema"]) | ANYTHING)
    elif content:
        body = draw(st.binary(max_size=64))
    return made + ("?" + "&".join(query) if query else ""), method.upper(), operation["operationId"], body, headers


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    short = QUICK.with_changes(wall_time_s=1, cpu_time_s=1, mem_bytes=64 << 20)
    policies = {name: NamedPolicy(name=name, policy=short, warm=warm) for name, warm in (("default", 1), ("small", 0))}
    with running(settings(tmp_path_factory.mktemp("fuzz"), policies=policies, request_s=3.0)) as found:
        yield found


@pytest.fixture(scope="module")
def living(here: Here) -> dict[str, str]:
    """Something for the routes that need something; each is made anew where a request has removed it."""
    return {}


def _known(here: Here, living: dict[str, str], path: str) -> str:
    client = Client(here.address, token="")
    make = {"run": lambda: client.run(["echo", "x"], bundle=True).run_id, "box": lambda: client.open().id,
            "pool": lambda: client.Pool(warm=0).id}  # fmt: skip
    where = {"run": "/v1/runs/", "box": "/v1/boxes/", "pool": ""}
    for name, begin in make.items():
        if f"@{name}@" in path:
            old = living.get(name, "")
            rows = client.connection.json("GET", "/v1/pools")["pools"] if name == "pool" else []
            if rows:
                living[name] = rows[0]["id"]
            elif name == "pool" or not old or ask(here.port, "GET", where[name] + old)[0] != 200:
                living[name] = begin()
            path = path.replace(f"@{name}@", living[name])
    return path


STREAMS = {route.handler for route in ROUTES if EVENTS in route.answers.values()}


def test_no_request_of_the_document_makes_the_service_fail(here: Here, living: dict[str, str]) -> None:
    seen: dict[str, set[int]] = {}

    @rules(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(requests())
    def one(request: tuple[str, str, str, Any, dict[str, str]]) -> None:
        path, method, handler, body, headers = request
        if handler in STREAMS:
            return  # they have no end; their tests are in test_service.py
        try:
            status, told_headers, found = ask(here.port, method, _known(here, living, path), body, headers=headers)
        except UnicodeEncodeError:
            return  # half a character is no JSON that a client could send
        seen.setdefault(handler, set()).add(status)
        assert status < 500, (request, found)
        operation = next(each for _, _, each in OPERATIONS if each["operationId"] == handler)
        assert str(status) in operation["responses"], (status, request)
        content = operation["responses"][str(status)].get("content", {}).get("application/json")
        if content and "$ref" not in content["schema"]:
            assert told(found, content["schema"]) == "", (request, found)
        if status >= 400:
            assert found["error"]["message"], found
        assert told_headers["x-content-type-options"] == "nosniff"

    one()
    assert any(200 in found for found in seen.values()) and any(400 in found for found in seen.values()), seen


def test_the_document_and_the_application_are_the_same_table(here: Here) -> None:
    found = ask(here.port, "GET", "/openapi.json")[2]
    assert found == DOCUMENT and found["openapi"].startswith("3.1")
    assert {(each["operationId"]) for _, _, each in OPERATIONS} == {route.handler for route in ROUTES}
    for path, methods in found["paths"].items():
        for method in {"get", "post", "put", "delete", "patch"} - set(methods):
            probe = path.replace("{run}", "0" * 24).replace("{box}", "0" * 24).replace("{pool}", "0" * 24)
            assert ask(here.port, method.upper(), probe)[0] == 405, (method, path)


def test_a_fault_of_ours_would_be_seen(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is not expected is a 500, whose answer tells nothing of us."""
    monkeypatch.setattr(type(here.service), "status", lambda self, tenant: 1 / 0)
    status, _, found = ask(here.port, "GET", "/v1/status")
    assert status == 500 and "ZeroDivision" not in str(found)
