"""The page's verifier against the Python one, inside a real browser: the same steps, shapes, bytes and words."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "unit", "evidence"))
import chromium
import evidence_samples as s
from test_evidence_mutations import PROCTOR, RINGFENCE, UNGRADED, byte_edits, field_edits
from test_evidence_verify import INDEX, read, verify_entry
from test_verify_page import comparable

from ringfence.errors import EvidenceError, VerificationError
from ringfence.evidence import schema
from ringfence.evidence.canonical import canonical
from ringfence.evidence.keys import SigningKey, key_id, signature_holds
from ringfence.evidence.page import verify_page
from ringfence.evidence.shape import Choice, Items, Leaf, Record, Table
from ringfence.evidence.strictjson import parse
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import STEPS, verify_bundle

pytestmark = pytest.mark.unmeasured

BYTES = "const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));"
VERIFY = f"""async (cases) => {{ {BYTES}
  const results = [];
  for (const {{ data, trust, pubkey, nonce, allow }} of cases) {{
    const believed = trust ? parseTrust(utf8.encode(trust)) : pubkey ? pinnedTrust(pubkey) : ANY_SIGNER;
    const options = {{ trust: believed, nonce: nonce ?? null, allowMissingEnvironment: Boolean(allow), files: null }};
    const found = await verifyBundle(bytes(data), {{ ...options, now: fullTime(new Date().toISOString()) }});
    results.push(found.failure ? [found.failure.number, found.failure.text] : [0, found.notes.join('\\n')]);
  }}
  return results }}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("page") / "verify.html"
    path.write_bytes(verify_page().encode())
    with chromium.browser() as running, chromium.watched_page(running, path.as_uri()) as watched:
        yield watched.page


def case(data: bytes, **options: Any) -> dict[str, Any]:
    return {"data": base64.b64encode(data).decode(), **options}


def in_python(data: bytes, trust: Trust) -> tuple[int, str]:
    try:
        return 0, "\n".join(verify_bundle(data, trust=trust).notes)
    except VerificationError as error:
        return error.step, comparable(str(error))


def in_browser(page: Any, cases: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(step, comparable(text)) for step, text in page.evaluate(VERIFY, cases)]


def test_the_steps_have_the_numbers_and_words_of_python(page: Any) -> None:
    found = page.evaluate("STEPS.map(({ number, word, only }) => [number, word, only])")
    assert found == [[step.number, step.word, list(step.only)] for step in STEPS]


def test_every_vector_fails_at_the_step_and_with_the_words_of_python(page: Any) -> None:
    entries = [entry for entry in INDEX if "artifacts" not in entry]  # a directory is chosen by hand: test_verify_page
    assert len(entries) > 150
    cases = [
        case(
            read(entry["file"]),
            trust=json.dumps(entry["trust"]) if "trust" in entry else None,
            pubkey=entry.get("pubkey"),
            nonce=entry.get("nonce"),
            allow=entry.get("allow_missing_environment"),
        )
        for entry in entries
    ]
    expected = []
    for entry in entries:
        try:
            expected.append((0, "\n".join(verify_entry(entry).notes)))
        except VerificationError as error:
            expected.append((error.step, comparable(str(error))))
    assert [step for step, _ in expected] == [entry["step"] for entry in entries]
    assert in_browser(page, cases) == expected


def described(shape: Any) -> Any:
    match shape:
        case Leaf():
            return shape.expected
        case Record():
            return ["record", members(shape.required), members(shape.optional)]
        case Items():
            return ["items", described(shape.item)]
        case Table():
            return ["table", described(shape.key), described(shape.value)]
        case Choice():
            return ["choice", shape.tag, members(shape.records)]


def members(shapes: Any) -> list[Any]:
    return [[name, described(shape)] for name, shape in shapes.items()]


DESCRIBE = """() => {
  const members = (shapes) => [...shapes].map(([name, shape]) => [name, described(shape)]);
  const described = (shape) => ({
    leaf: () => shape.expected,
    record: () => ['record', members(shape.required), members(shape.optional)],
    items: () => ['items', described(shape.item)],
    table: () => ['table', described(shape.key), described(shape.value)],
    choice: () => ['choice', shape.tag, members(shape.records)],
  })[shape.kind]();
  const bundles = BUNDLES[PROCTOR];
  const ours = OURS.map((format) => BUNDLES[format].get(3));
  const shapes = [bundles.get(1), bundles.get(2), ...ours, RUN, UNGRADED_RUN, INPUTS, UNGRADED_INPUTS, TRUST];
  return shapes.map(described) }"""


def test_the_formats_are_those_of_python(page: Any) -> None:
    runs, inputs = (schema.RUN, schema.UNGRADED_RUN), (schema.INPUTS, schema.UNGRADED_INPUTS)
    shapes = [*schema.PROCTOR_BUNDLES.values(), *(schema.RINGFENCE_BUNDLE,) * 2, *runs, *inputs, schema.TRUST]
    assert page.evaluate(DESCRIBE) == [described(shape) for shape in shapes]
    limits = "[MAX_DOCUMENT_BYTES, MAX_COMMAS, MAX_DEPTH, MAX_PROBLEMS, MAX_SIGNATURES, MAX_LINE_BYTES]"
    from ringfence.evidence import chain, checks, strictjson

    assert page.evaluate(limits) == [
        *(strictjson.MAX_DOCUMENT_BYTES, strictjson.MAX_COMMAS, strictjson.MAX_DEPTH),
        *(checks._MAX_PROBLEMS, schema.MAX_SIGNATURES, chain.MAX_LINE_BYTES),
    ]


ORIGINALS = {
    "ringfence": (RINGFENCE, {"trust": json.dumps(s.trust_document())}, Trust.parse(s.encoded(s.trust_document()))),
    "proctor": (PROCTOR, {"pubkey": s.PROCTOR_KEY.public_hex}, Trust.pinned(s.PROCTOR_KEY.public_hex)),
    "ungraded": (UNGRADED, {"pubkey": s.OPERATOR.public_hex}, Trust.pinned(s.OPERATOR.public_hex)),
}
LIES = {
    "ringfence": {0, 9, 14, 15, 16, 17, 18},
    "proctor": {0, 9, 10, 11},
    "ungraded": {0, 9, 11, 14, 15, 16, 17},
}


@pytest.mark.long
@pytest.mark.parametrize("name", ORIGINALS)
def test_changed_bundles_get_the_same_answer_as_in_python(page: Any, name: str) -> None:
    original, options, trust = ORIGINALS[name]
    pick = random.Random(f"page {name}")
    fields, single = list(field_edits(original, every=1)), list(byte_edits(original, every=1))
    edits = [*pick.sample(fields, 900), *pick.sample(single, 500)]
    expected = [in_python(data, trust) for data in edits]
    assert disagreements(in_browser(page, [case(data, **options) for data in edits]), expected) == []
    assert {1, 2, 3, 4, 5, 6, 12, 13} <= {step for step, _ in expected}
    assert name == "ungraded" or 8 in {step for step, _ in expected}  # one violation is seldom hit


@pytest.mark.parametrize("name", ORIGINALS)
def test_lies_under_a_good_signature_get_the_same_answer_as_in_python(page: Any, name: str) -> None:
    """What only the later steps can refuse."""
    edits = list(signed_anew(ORIGINALS[name][0], random.Random(f"lies {name}"), 300 if name == "ungraded" else 900))
    expected = [in_python(data, Trust.unsafe_any_signer()) for data in edits]
    assert disagreements(in_browser(page, [case(data) for data in edits]), expected) == []
    assert LIES[name] <= {step for step, _ in expected}


@pytest.mark.parametrize("signer", [s.OPERATOR, s.BENCHMARK], ids=["first", "further"])
def test_a_revoked_signer_gets_the_same_answer_as_in_python(page: Any, tmp_path: Path, signer: SigningKey) -> None:
    data, trust = s.encoded(s.full_bundle(str(tmp_path))), s.encoded(s.revoked_later(signer))
    expected = in_python(data, Trust.parse(trust))
    assert expected[0] == (0 if signer is s.OPERATOR else 20)
    assert in_browser(page, [case(data, trust=trust.decode())]) == [expected]


def disagreements(ours: list[tuple[int, str]], theirs: list[tuple[int, str]]) -> list[Any]:
    return [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]


def signed_anew(original: bytes, pick: random.Random, count: int) -> Iterator[bytes]:
    bundle = {name: value for name, value in json.loads(original).items() if name != "anchors"}
    for edit in pick.sample(list(field_edits(s.encoded(bundle), every=1)), count):
        try:
            yield s.encoded(s.redigested(json.loads(edit)))
        except (KeyError, TypeError, AttributeError, ValueError, EvidenceError):
            continue  # too broken to be signed
    for name in bundle.get("contents", ()):
        if name in ("run.json", "inputs.json"):
            text = bundle["contents"][name].replace("null", "5")  # field_edits knows no null
            for edit in pick.sample(list(field_edits(text.encode(), every=1)), count * 5 // 18):
                yield s.encoded(s.with_text(bundle, name, edit.decode()))


NUMBERS = (
    *("0", "-0", "-0.0", "0.0", "1.0", "1e21", "1e20", "1E-7", "0.000001", "123456789012345680000.0", "5e-324"),
    *("1.7976931348623157e308", "9007199254740991", "-9007199254740991", "333333333.33333329", "4.50", "2e-3"),
)


def random_value(pick: random.Random, depth: int) -> Any:
    kinds = [
        lambda: pick.choice((None, True, False)),
        lambda: pick.randint(-(2**53) + 1, 2**53 - 1),
        lambda: pick.uniform(-1, 1) * 10 ** pick.randint(-300, 300),
        lambda: "".join(chr(pick.choice((pick.randrange(0xD800), pick.randrange(0xE000, 0x110000)))) for _ in range(5)),
        lambda: "".join(chr(pick.randrange(0x80)) for _ in range(8)),
        lambda: [random_value(pick, depth + 1) for _ in range(3)],
        lambda: {random_value_text(pick): random_value(pick, depth + 1) for _ in range(4)},
    ]
    return pick.choice(kinds[: 5 if depth > 3 else 7])()


def random_value_text(pick: random.Random) -> str:
    return pick.choice(("__proto__", "1", "10", "é", "\U0001f600", "\ufb33", "a", "A", "", "\r", "\u20ac"))


def test_canonical_json_is_that_of_python(page: Any) -> None:
    pick = random.Random(8785)
    texts = [*NUMBERS, *(json.dumps(random_value(pick, 0), ensure_ascii=pick.random() < 0.5) for _ in range(2000))]
    script = f"(texts) => {{ {BYTES} return texts.map((text) => canonical(parseStrictJson(bytes(text)))) }}"
    found = page.evaluate(script, [base64.b64encode(text.encode()).decode() for text in texts])
    assert found == [canonical(parse(text.encode())).decode() for text in texts]


def test_what_strict_json_refuses_is_what_python_refuses(page: Any) -> None:
    pick = random.Random(8259)
    pieces = ('"', "{", "}", "[", "]", ":", ",", "1", "0", "-", ".", "e", "+", "\\", "u", "d", "8", "a", " ", "\n")
    pieces += ("true", "null", "NaN", "\\ud83d\\ude00", "\\ud800", "\t", "\0", "\ufeff", "\xa0", "é", '"a"', '{"a":1}')
    texts = ["".join(pick.choices(pieces, k=pick.randint(1, 8))) for _ in range(20_000)]
    script = (
        f"(texts) => {{ {BYTES} return texts.map((text) => "
        "{ try { return canonical(parseStrictJson(bytes(text))) } catch (error) {"
        " return error instanceof EvidenceError ? null : String(error) } }) }"
    )
    found = page.evaluate(script, [base64.b64encode(text.encode()).decode() for text in texts])
    expected = [read_or_none(text) for text in texts]
    assert found == expected
    assert sum(text is not None for text in expected) > 300


def read_or_none(text: str) -> str | None:
    try:
        return canonical(parse(text.encode())).decode()
    except EvidenceError:
        return None


def test_sha256_is_that_of_python_at_every_length_and_in_pieces(page: Any) -> None:
    data = random.Random(256).randbytes(70_000)
    lengths = [*range(200), 1000, 65_535, 65_536, 70_000]
    script = f"""([text, lengths]) => {{ {BYTES} const data = bytes(text); return lengths.map((length) => {{
      const pieces = new Sha256();
      for (let at = 0; at < length; at += 37) pieces.update(data.subarray(at, Math.min(at + 37, length)));
      const whole = hexOf(sha256(data.subarray(0, length)));
      return whole === hexOf(pieces.digest()) ? whole : 'differs' }}) }}"""
    found = page.evaluate(script, [base64.b64encode(data).decode(), lengths])
    assert found == [hashlib.sha256(data[:length]).hexdigest() for length in lengths]


def test_ed25519_answers_as_in_python(page: Any) -> None:
    """Good and changed signatures, s not reduced, and keys that are no points."""
    order = 2**252 + 27742317777372353535851937790883648493
    message = b"ringfence"
    good = s.OPERATOR.sign(message)
    s_plus_order = (int.from_bytes(bytes.fromhex(good[64:]), "little") + order).to_bytes(32, "little").hex()
    cases = [(s.OPERATOR.public_hex, good), (s.OPERATOR.public_hex, good[:64] + s_plus_order)]
    cases += [(s.STRANGER.public_hex, good), ("ff" * 32, good), ("02" + "00" * 31, good)]
    cases += [(s.OPERATOR.public_hex, good[:i] + format(int(good[i], 16) ^ 1, "x") + good[i + 1 :]) for i in range(128)]
    script = f"""async ([cases, text]) => {{ {BYTES} const results = [];
      for (const [key, signature] of cases) results.push(await signatureHolds(key, signature, bytes(text)));
      return results }}"""
    found = page.evaluate(script, [cases, base64.b64encode(message).decode()])
    assert found == [signature_holds(key, signature, message) for key, signature in cases]
    assert found[0] is True and sum(found) == 1
    assert page.evaluate("keyId", s.OPERATOR.public_hex) == key_id(s.OPERATOR.public_hex)
