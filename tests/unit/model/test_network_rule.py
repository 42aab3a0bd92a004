"""One entry of a network list: its one spelling, and everything that is refused, with the key and what to write."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import PolicyError
from ringfence.model.network_rule import CONNECTION_HEADERS, DEFAULT_PORTS, Injection, NetworkRule

LONG = ".".join(["a" * 63] * 4)  # 255 characters


def refused(value: object) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        NetworkRule.of(value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "one_spelling"),
    [
        ("api.example.com", "api.example.com"), ("API.Example.COM.", "api.example.com"),
        ("api.example.com:443", "api.example.com:443"), ("api.example.com.:443", "api.example.com:443"),
        ("api.example.com:80,443", "api.example.com"), ("api.example.com:443,80,80", "api.example.com"),
        ("*.pypi.example.org:443", "*.pypi.example.org:443"), ("*.COM", "*.com"), ("db", "db"),
        ("a_b.example", "a_b.example"), ("_dmarc.example", "_dmarc.example"), ("a--b.example", "a--b.example"),
        ("1.example", "1.example"), ("1e3.example", "1e3.example"), ("x0x1", "x0x1"), ("0xyz", "0xyz"),
        ("name:8000-8010", "name:8000-8010"), ("name:8001-8002,8000", "name:8000-8002"), ("name:5-5", "name:5"),
        ("name:1,2,4", "name:1-2,4"), ("name:65535", "name:65535"), ("name: 80 , 443", "name"),
        ("10.1.2.0/24:5432", "10.1.2.0/24:5432"), ("10.1.2.3", "10.1.2.3"), ("10.1.2.3/32:1", "10.1.2.3:1"),
        ("0.0.0.0/0:443", "0.0.0.0/0:443"), ("127.0.0.1.", "127.0.0.1"), ("169.254.169.254:80", "169.254.169.254:80"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"), ("[2001:DB8:0::1]", "[2001:db8::1]"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"), ("[2001:db8::1/128]", "[2001:db8::1]"), ("[::1]:9", "[::1]:9"),
        ("bücher.example", "xn--bcher-kva.example"), ("BÜCHER.example", "xn--bcher-kva.example"),
        ("*.bücher.example:443", "*.xn--bcher-kva.example:443"), ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("ｅxample.com", "example.com"), ("日本.example", "xn--wgv71a.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"), (LONG[:253], LONG[:253]), (LONG[:253] + ".", LONG[:253]),
    ],
)  # fmt: skip
def test_a_rule_has_one_spelling(text: str, one_spelling: str) -> None:
    rule = NetworkRule.of(text)
    assert str(rule) == rule.plain() == one_spelling and NetworkRule.of(one_spelling) == rule


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"), ("*", "write network: host"), ("*.", "empty label"), ("*..com", "empty label"),
        ("*.*.com", "whole sub-domains"), ("a.*.com", "whole sub-domains"), ("*a.com", "whole sub-domains"),
        ("**.com", "whole sub-domains"), (".", "empty label"), (".a", "empty label"), ("a..b", "empty label"),
        ("a..", "empty label"), ("http://api.example.com/v1", "write api.example.com"), ("https://", "have a scheme"),
        ("http://a:80/", "write a:80"), ("user@a.example", "write a.example"), ("a.example/v1", "under paths"),
        ("a b", "' ' can't be in"), ("a\nb", "can't be in"), ("a\0b", "can't be in"), ("a,b", "',' can't be in"),
        ("-a.example", "hyphen"), ("a-.example", "hyphen"), ("a" * 64 + ".example", "64 characters"),
        (LONG[:254], "254 characters"), ("ü" * 2000, "2000 characters"), ("straße.example", "two ways"),
        ("a\u200db.example", "two ways"), ("a\u3002example", "two ways"), ("a\uff0eexample", "two ways"),
        ("\U0001f9ff.example", "can't be encoded"), ("\u1e9e.example", "can't be encoded"),
        ("\ud800.example", "can't be encoded"), ("a\u0301\u202e.b", "can't be"),
        ("ü" * 60 + ".example", "IDNA"),
        ("name:0", "port 0 is not between 1 and 65535"), ("name:65536", "port 65536"), ("name:-1", "not a port"),
        ("name:", "not a port"), ("name:8010-8000", "write 8000-8010"), ("name:80-", "not a port"),
        ("name:0-5", "port 0"),
        ("name:80-90-100", "not a port"), ("name:http", "not a port"), ("name:٨٠", "not a port"),
        ("name:80,", "not a port"),
        ("name:" + "9" * 5000, "not a port"), ("name:*", "not a port"), ("name:+80", "not a port"),
        ("10.1.2.3/24", "write 10.1.2.0/24"), ("10.1.2.0/33", "not a network"), ("10.1.2.0/255.255.255.0", "prefix"),
        ("10.1.2.0/", "prefix"), ("10.1.2.0/٢٤", "prefix"), ("10.1/16", "another spelling of the address 10.0.0.1"),
        ("[2001:db8::1/32]", "write 2001:db8::/32"), ("[2001:db8::]/32", "follow the bracket"), ("[::1", "not closed"),
        ("2001:db8::1", "in brackets"), ("[a.example]:443", "only an IPv6"), ("[10.0.0.1]", "only an IPv6"),
        ("[]", "only an"),
        ("[fe80::1%eth0]", "a zone"), ("[fe80::1]", "fe80::/10"), ("[fe80::/64]", "fe80::/10"),
        ("[fe80::%1/64]", "a zone"), ("[2001:db8::g]", "not an IPv6"), ("[1:2:3]:4", "not an IPv6"),
        ("2130706433", "write 127.0.0.1"), ("0177.0.0.1", "write 127.0.0.1"), ("0x7f.1", "write 127.0.0.1"),
        ("127.1", "write 127.0.0.1"), ("0x7f000001", "write 127.0.0.1"), ("017700000001", "write 127.0.0.1"),
        ("443", "name:443"), ("1.2.3.4.5", "last label is a number"),
        ("256.1.1.1", "last label is a number"), ("a.example.1", "last label is a number"), ("*.0x1f", "number"),
        ("１２７.０.０.１", "number"), ("127.0.0.01", "write 127.0.0.1"), ("a.0x", "number"), ("*.127.0.0.1", "number"),
        ("[::ffff:10.0.0.1]", "write 10.0.0.1"), ("[::ffff:a00:1]:80", "write 10.0.0.1"),
        ("[::ffff:10.0.0.0/104]", "write 10.0.0.0/8"), ("[::ffff:0:0/96]", "write 0.0.0.0/0"),
        ("0.0.0.0", "nobody's address"), ("[::]", "nobody's address"), ("224.0.0.1", "no connection can be made"),
        ("224.0.0.0/4", "no connection can be made"), ("[ff02::1]", "no connection can be made"),
        ("255.255.255.255", "no connection"),
        ("127.64.0.1:53", "127.64.0.0/16"), ("127.64.9.0/24", "127.64.0.0/16"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_what_to_write(text: str, word: str) -> None:
    error = refused(text)
    assert word in error.problem and error.field == ("ports" if text.startswith("name:") else "host")


FULL = {
    "host": "API.example.com", "ports": [443, "8000-8010"], "methods": ["get", "POST"], "paths": ["/v1/messages"],
    "inject": {"header": "X-API-Key", "from_env": "MODEL_API_KEY"}, "max_bytes_out": "10M", "max_bytes_in": 5,
}  # fmt: skip


def test_a_mapping_says_more() -> None:
    rule = NetworkRule.of(FULL)
    assert (rule.host, rule.ports) == ("api.example.com", ((443, 443), (8000, 8010)))
    assert (rule.methods, rule.paths) == (("GET", "POST"), ("/v1/messages",)) and rule.needs_inspection
    assert rule.inject == Injection(header="x-api-key", from_env="MODEL_API_KEY")
    assert (rule.max_bytes_out, rule.max_bytes_in) == (10 * 2**20, 5)
    assert NetworkRule.of(rule.plain()) == rule and NetworkRule.of(rule) is rule
    assert NetworkRule.of({"host": "a.example"}).plain() == "a.example"
    assert NetworkRule.of({"host": "2001:db8::1", "ports": 443}) == NetworkRule.of("[2001:db8::1]:443")
    assert not NetworkRule.of({"host": "a.example", "max_bytes_out": 1}).needs_inspection


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"host": None}, "host"), ({"host": "a.example:443"}, "host"), ({"host": 5}, "host"), ({"host": b"a"}, "host"),
        ({"ports": 0}, "ports"), ({"ports": 65536}, "ports"), ({"ports": -1}, "ports"), ({"ports": []}, "ports"),
        ({"ports": True}, "ports"), ({"ports": [80.0]}, "ports"), ({"ports": None}, "ports"),
        ({"ports": [[1, 2]]}, "ports"),
        ({"ports": "80,443,0"}, "ports"), ({"ports": {"a": 1}}, "ports"), ({"ports": [(2, 1)]}, "ports"),
        ({"methods": "GET"}, "methods"), ({"methods": ["GE T"]}, "methods"), ({"methods": [""]}, "methods"),
        ({"methods": ["G\n"]}, "methods"), ({"methods": [5]}, "methods"), ({"methods": ["CONNECT"]}, "methods"),
        ({"paths": "/v1"}, "paths"), ({"paths": ["v1"]}, "paths"), ({"paths": ["/a b"]}, "paths"),
        ({"paths": [""]}, "paths"),
        ({"paths": ["/a?b"]}, "paths"), ({"paths": ["/a/../b"]}, "paths"), ({"paths": ["//a"]}, "paths"),
        ({"paths": ["/ü"]}, "paths"), ({"paths": ["/a\0"]}, "paths"), ({"paths": [5]}, "paths"),
        ({"inject": {}}, "inject"), ({"inject": {"header": "x"}}, "inject"), ({"inject": {"from_env": "X"}}, "inject"),
        ({"inject": {"header": "x", "from_env": "X", "value": "s"}}, "inject"), ({"inject": "x"}, "inject"),
        ({"inject": {"header": "x y", "from_env": "X"}}, "inject"),
        ({"inject": {"header": "", "from_env": "X"}}, "inject"),
        ({"inject": {"header": "x", "from_env": ""}}, "inject"),
        ({"inject": {"header": "x", "from_env": "A=B"}}, "inject"),
        ({"inject": {"header": 5, "from_env": "X"}}, "inject"),
        ({"inject": {"header": "x", "from_env": "A\0"}}, "inject"),
        *(({"inject": {"header": name.title(), "from_env": "X"}}, "inject") for name in sorted(CONNECTION_HEADERS)),
        ({"max_bytes_out": 0}, "max_bytes_out"), ({"max_bytes_out": "lots"}, "max_bytes_out"),
        ({"max_bytes_in": -1}, "max_bytes_in"), ({"max_bytes_in": True}, "max_bytes_in"),
        ({"max_bytes_in": 1.5}, "max_bytes_in"),
        ({"max_bytes_in": 2**63}, "max_bytes_in"), ({"method": ["GET"]}, "method"), ({5: 1}, "5"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_its_key(change: dict[object, object], key: str) -> None:
    assert refused({**FULL, **change}).field == key


@pytest.mark.parametrize("path", [
    "/public/.*", "/public/..*", "/.*", "/public/%2e*", "/public/%2E%2e/*", "/a/%2e/b", "/a/.", "/a/..;/b", "/a//*",
    "/a%2fb", "/a%2Fb/*", "/a%", "/a%2*", "/a%252f", "/a%c3*", "/a;b/..;c", "/%00",
])  # fmt: skip
def test_a_path_that_means_more_or_less_than_it_says_is_refused(path: str) -> None:
    """Brought to the spelling of requests, /public/.* was /public/*, and /public/..* was /*."""
    error = refused({**FULL, "paths": ["/v1/messages", path]})
    assert error.field == "paths" and repr(path) in error.problem and "a * at its end alone" in error.problem


@pytest.mark.parametrize(("path", "spelled"), [
    ("/", "/"), ("/*", "/*"), ("/v1/*", "/v1/*"), ("/v1*", "/v1*"), ("/%76%31/%c3%a9*", "/v1/%C3%A9*"),
    ("/.well-known/*", "/.well-known/*"), ("/.w*", "/.w*"), ("/a.*", "/a.*"), ("/...*", "/...*"), ("/a*b", "/a*b"),
])  # fmt: skip
def test_a_path_of_a_rule_has_one_spelling(path: str, spelled: str) -> None:
    assert NetworkRule.of({**FULL, "paths": [path, spelled]}).paths == (spelled,)


def test_all_that_is_wrong_with_an_entry_is_told_at_once() -> None:
    error = refused({"host": "a..b", "ports": 0, "methods": ["GET"], "paths": ["x"]})
    assert [each.field for each in (error, *error.more)] == ["host", "ports", "paths"]
    assert 'did you mean "methods"?' in str(refused({"host": "a", "method": []}))
    assert "there are host, ports, methods" in str(refused({"host": "a", "zzz": []}))
    assert refused({"ports": 80}).field == refused(5).field == refused(None).field == "host"


@pytest.mark.parametrize("field", ["Host", "Content-Length", "Transfer-Encoding", "Connection", "TE", "Upgrade"])
def test_no_header_of_the_connection_is_injected(field: str) -> None:
    assert "the gateway alone sets it" in refused({"host": "a", "inject": {"header": field, "from_env": "X"}}).problem


def test_a_rule_is_a_key_and_can_be_copied_and_pickled() -> None:
    rule = NetworkRule.of(FULL)
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule == NetworkRule.of(FULL)
    assert len({rule, NetworkRule.of(FULL), NetworkRule.of("a"), NetworkRule.of("A.")}) == 2
    with pytest.raises(AttributeError):
        rule.host = "evil.example"  # type: ignore[misc]
    with pytest.raises(PolicyError, match="unknown key"):
        NetworkRule(host="a", foo=1)  # type: ignore[call-arg]


def test_a_rule_knows_what_it_lists() -> None:
    kinds = {text: NetworkRule.of(text) for text in ("a.example", "*.example", "10.0.0.1", "10.0.0.0/8", "[::1]")}
    assert [text for text, rule in kinds.items() if rule.is_address] == ["10.0.0.1", "10.0.0.0/8", "[::1]"]
    assert [text for text, rule in kinds.items() if rule.is_network] == ["10.0.0.0/8"]
    assert [text for text, rule in kinds.items() if rule.is_wildcard] == ["*.example"]
    assert kinds["a.example"].ports == DEFAULT_PORTS and kinds["a.example"].has_port(443)
    assert not kinds["a.example"].has_port(8443) and NetworkRule.of("a:1-9").has_port(9)


WILD = st.text("aZ0.-_*:/[]%@,x \0\nüß\u3002\ud800٣1٢", max_size=24)


@pytest.mark.slow
@given(WILD)
def test_any_text_is_a_rule_in_one_spelling_or_a_policy_error(text: str) -> None:
    try:
        rule = NetworkRule.of(text)
    except PolicyError as error:
        assert error.field in ("host", "ports") and error.problem
    else:
        assert NetworkRule.of(str(rule)) == rule and str(rule).isascii() and str(rule) == str(rule).lower()
