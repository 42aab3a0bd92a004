"""Whatever the code is, the validator returns: made-up text, broken code, code with pieces put in at random."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.validation.test_validator import HONEST, MALICIOUS

from ringfence.validation import SecurityValidationResult, SecurityValidator
from ringfence.validation.result import CATEGORIES, LEVELS

VALIDATOR = SecurityValidator()
PIECES = [code for _, code in (*HONEST, *MALICIOUS)]
WORDS = (
    "( ) [ ] { } , : ; . = == := + - * ** / // % @ & | ^ ~ < > -> ... ' \" ''' \"\"\" f' f\" rb' \\ \n \r \t \f \0 # "
    "def class lambda if else elif for in while try except finally with as import from return yield await async global "
    "nonlocal match case del not and or is None True eval exec open os sys getattr globals() __class__ __import__ x y "
    "0 1 'a' \"%s\" .join .format [::-1] {x!r:>{y}} é ｅ 𝑒 \u202e \ufeff \ud800 \U0010ffff /etc /tmp .. base64 chr"
)
TOKENS = WORDS.split(" ")
any_token = st.sampled_from(TOKENS)
bounded = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def holds(code: str) -> None:
    result = VALIDATOR.validate(code)
    assert isinstance(result, SecurityValidationResult)
    assert result.is_valid is not bool(result.errors)
    for finding in result.findings:
        assert finding.line >= 1 and finding.column >= 1
        assert finding.category in CATEGORIES and finding.level in LEVELS
        assert str(finding).isprintable() and finding.rule != "unfinished"


@bounded
@given(st.text(max_size=300))
def test_any_text_is_answered(code: str) -> None:
    holds(code)


@bounded
@given(st.binary(max_size=300))
def test_any_bytes_are_answered(data: bytes) -> None:
    assert VALIDATOR.validate_bytes(data).is_valid in (True, False)


@bounded
@given(st.lists(st.sampled_from(TOKENS), max_size=60), st.sampled_from(["", " ", "\n"]))
def test_any_tokens_are_answered(tokens: list[str], between: str) -> None:
    holds(between.join(tokens))


@bounded
@given(st.sampled_from(PIECES), st.sampled_from(PIECES), st.integers(0, 400), st.integers(0, 400), any_token)
def test_code_that_was_cut_and_joined_is_answered(one: str, other: str, start: int, end: int, token: str) -> None:
    holds(one[:start] + token + other[end:])


@bounded
@given(st.sampled_from(TOKENS), st.integers(1, 20_000), st.sampled_from(["", " ", "\n", "1"]))
def test_any_token_a_thousand_times_is_answered(token: str, times: int, between: str) -> None:
    holds((token + between) * (times // max(1, len(token))))


@bounded
@given(st.sampled_from(MALICIOUS), st.sampled_from(HONEST))
def test_what_is_malicious_stays_so_beside_honest_code(malicious: tuple[str, str], honest: tuple[str, str]) -> None:
    code = f"{malicious[1]}\n{honest[1]}"
    holds(code)
    assert not VALIDATOR.validate(code).is_valid


# A local name is never the built-in one, a cookie counts in the first lines alone, and __main__ has no local names.
OTHERWISE_IN_A_FUNCTION = ("import: eval ", "import: global eval", "hidden: coding", "import: through main")


@bounded
@given(st.sampled_from([each for each in MALICIOUS if not each[0].startswith(OTHERWISE_IN_A_FUNCTION)]))
def test_what_is_malicious_stays_so_inside_a_function(malicious: tuple[str, str]) -> None:
    code = "def part():\n" + "".join(f"    {line}\n" for line in malicious[1].splitlines()) + "    pass\n"
    assert not VALIDATOR.validate(code).is_valid
