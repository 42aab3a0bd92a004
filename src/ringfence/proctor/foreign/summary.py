"""What pytest's own summary says, read as Terminal-Bench 1 reads it: the lines after «short test summary info».

Code under test can print such lines. So this never makes a pass: it only takes one away, where the script's exit status
is 0 but not all tests passed, or there were none.
"""

from __future__ import annotations

_HEADING = "short test summary info"
_PASSED = frozenset({"PASSED", "SKIPPED", "XFAIL"})
_FAILED = frozenset({"FAILED", "ERROR", "XPASS"})


def results(text: str) -> dict[str, bool]:
    """Each test of the summary, and whether it counts as passed; empty: there is no summary.

    >>> results("== short test summary info ==\\nPASSED t.py::a\\nFAILED t.py::b - no")
    {'a': True, 'b': False}
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines, 1) if _is_heading(line)), len(lines))
    found: dict[str, bool] = {}
    for line in lines[start:]:
        status, _, name = line.strip().partition(" ")
        status = status.strip(":").upper()
        if status in _PASSED | _FAILED and name.strip():
            test = name.strip().partition(" - ")[0] if status in _FAILED else name.strip()
            test = test.partition("::")[2] or test
            found[test] = status in _PASSED and found.get(test, True)
    return found


def _is_heading(line: str) -> bool:
    """Between equals signs. By no pattern: code under test prints as many signs as it likes."""
    before, found, after = line.lower().partition(_HEADING)
    return bool(found) and before.rstrip().endswith("=") and after.lstrip().startswith("=")


def problem(output: bytes) -> str:
    """Why an output does not show a pass; empty: all tests of its summary passed."""
    found = results(output.decode("utf-8", "replace"))
    failed = [name for name, passed in found.items() if not passed]
    if not found:
        return "pytest printed no summary of its tests; it has to run with -rA"
    return f"{len(failed)} of {len(found)} tests failed, {failed[0][:80]} first" if failed else ""
