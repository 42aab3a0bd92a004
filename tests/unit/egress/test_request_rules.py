"""What an inspected rule allows: methods, paths in one spelling, and the injected header."""

from __future__ import annotations

import pytest

from ringfence.egress.http_head import BadRequest, RequestHead, RequestReader
from ringfence.egress.request_rules import InspectedRule, Secret, admit
from ringfence.model.ways.url_path import BadPath, normal_path

SECRET = Secret(header="x-api-key", value=b"s3cret")


def head(line: str, *headers: str) -> RequestHead:
    reader = RequestReader()
    reader.receive("\r\n".join((f"{line} HTTP/1.1", "Host: a.example", *headers, "", "")).encode("latin-1"))
    found = reader.next_event()
    assert isinstance(found, RequestHead)
    return found


@pytest.mark.parametrize(("path", "plain"), [
    ("/", "/"), ("/v1/messages", "/v1/messages"), ("/v1/./messages", "/v1/messages"), ("/v1/x/../messages",
    "/v1/messages"),
    ("/%76%31/m", "/v1/m"), ("/v1/%2e%2e/x", "/x"), ("/v1/%2E/", "/v1/"), ("/a/..", "/"), ("/a/.", "/a/"), ("/a/b/",
    "/a/b/"),
    ("/a%20b", "/a%20b"), ("/%c3%a9", "/%C3%A9"), ("/a;b=1/c", "/a;b=1/c"), ("/a+b", "/a+b"), ("/...", "/..."),
])  # fmt: skip
def test_a_path_has_one_spelling(path: str, plain: str) -> None:
    assert normal_path(path) == plain
    assert normal_path(plain) == plain


@pytest.mark.parametrize("path", [
    "", "x", "*", "//", "/a//b", "/..", "/a/../..", "/%2e%2e", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/a%00",
    "/a%0d%0a",
    "/a%", "/a%2", "/a%zz", "/a%252fb", "/a%25", "/%c0%af", "/%ff", "/a/..;/b", "/a/.;x/b", "/a%3bb", "/a%3fb", "/a%23",
    "/%7f",
])  # fmt: skip
def test_what_servers_read_differently_is_no_path(path: str) -> None:
    with pytest.raises(BadPath):
        normal_path(path)


RULE = InspectedRule(name="a.example", methods=("GET", "POST"), paths=("/v1/messages", "/v1/files/*"))


@pytest.mark.parametrize(("line", "sent"), [
    ("GET /v1/messages", "/v1/messages"), ("POST /v1/messages?beta=..%2f", "/v1/messages?beta=..%2f"),
    ("GET /v1/%66iles/a/b", "/v1/files/a/b"), ("GET /v1/files/", "/v1/files/"), ("GET /x/../v1/messages",
    "/v1/messages"),
])  # fmt: skip
def test_an_allowed_request_goes_upstream_in_the_spelling_that_was_compared(line: str, sent: str) -> None:
    assert admit(head(line), RULE)[0].path == sent


@pytest.mark.parametrize("line", [
    "DELETE /v1/messages", "get /v1/messages", "HEAD /v1/messages", "GET /v1/message", "GET /v1/messages/",
    "GET /V1/messages",
    "GET /v1/files", "GET /v1/files/../messages2", "GET /v1/files/%2e%2e/admin", "GET /v1/files/..%2fadmin",
    "OPTIONS *",
    "GET /v1/files/..;/admin", "GET //v1/messages", "GET /v1/files//../../x", "TRACE /v1/messages",
    "GET /v1/files/%252e%252e/x",
    "GET /?/v1/messages", "CONNECT a.example:443", "GET http://a.example/x",
])  # fmt: skip
def test_every_other_request_is_refused_with_what_to_do(line: str) -> None:
    with pytest.raises(BadRequest) as caught:
        admit(head(line), RULE)
    assert caught.value.status == 403 and "a.example" in str(caught.value)


def test_a_refusal_says_what_to_add() -> None:
    with pytest.raises(BadRequest, match=r'add "PUT" to methods of a\.example in network'):
        admit(head("PUT /v1/messages"), RULE)
    with pytest.raises(BadRequest, match=r"/v1/models is not allowed .* allowed: /v1/messages, /v1/files/\*"):
        admit(head("GET /v1/models"), RULE)


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override: DELETE", "x_http_method_override: PUT",
"X-Original-URL: /admin",
                                    "X-Rewrite-Url: /admin"])  # fmt: skip
def test_headers_that_name_another_method_or_path_are_refused(header: str) -> None:
    with pytest.raises(BadRequest, match="may name another"):
        admit(head("GET /v1/messages", header), RULE)
    admit(head("GET /v1/messages", header), InspectedRule(name="a.example", inject=SECRET))


@pytest.mark.parametrize("header", ["Upgrade: websocket", "Upgrade: h2c"])
def test_a_connection_can_not_become_another_protocol(header: str) -> None:
    with pytest.raises(BadRequest, match="Upgrade"):
        admit(head("GET /", header), InspectedRule(name="a.example", inject=SECRET))


@pytest.mark.parametrize("name", ["X-Api-Key", "x-api-key", "X_API_KEY", "x-API_key"])
def test_a_header_of_the_guest_with_the_same_name_is_dropped(name: str) -> None:
    rule = InspectedRule(name="a.example", inject=SECRET)
    headers = admit(head("GET /", f"{name}: mine", "A: b", f"{name}: again"), rule)[1]
    assert headers == [(b"A", b"b"), (b"x-api-key", b"s3cret")]


def test_the_guest_can_not_have_the_injected_header_dropped() -> None:
    rule = InspectedRule(name="a.example", inject=SECRET)
    assert admit(head("GET /", "Connection: close, X-Api-Key"), rule)[1] == [(b"x-api-key", b"s3cret")]


def test_a_rule_without_paths_leaves_them_as_they_are() -> None:
    assert admit(head("GET /a//b%2f"), InspectedRule(name="a.example", methods=("GET",)))[0].path == "/a//b%2f"


def test_the_secret_is_in_no_text() -> None:
    rule = InspectedRule(name="a.example", inject=SECRET)
    assert "s3cret" not in f"{rule!r} {SECRET!r} {rule} {SECRET}"
    for value in (b"s3cret\r\nX: y", b"s3cret\n", b"", b" s3cret", b"s3\0cret"):
        with pytest.raises(ValueError, match="control characters") as caught:
            Secret(header="x-api-key", value=value)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("name", "port", "authority"), [
    ("a.example", 443, "a.example"), ("a.example", 8443, "a.example:8443"), ("2001:db8::1", 443, "[2001:db8::1]"),
])  # fmt: skip
def test_the_host_that_upstream_is_told(name: str, port: int, authority: str) -> None:
    assert InspectedRule(name=name, port=port).authority == authority
