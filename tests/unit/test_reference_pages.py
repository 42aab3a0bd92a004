"""The generated pages of the reference are what the code makes of them today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import reference_pages, system_calls_page

import ringfence
from ringfence.cli import COMMANDS
from ringfence.kernel.seccomp import profiles, programs


@pytest.mark.skipif(sys.platform != "linux", reason="some defaults are the system's")
def test_the_page_about_the_command_line_is_current() -> None:
    written = reference_pages.COMMAND_LINE.read_text(encoding="utf-8")
    assert written == reference_pages.command_line(), "run python -m tests.reference_pages"
    assert all(f"### ringfence {name}\n" in written for name in COMMANDS)


def test_every_argument_has_a_help_and_all_give_their_defaults_in_one_form() -> None:
    rows = [line for line in reference_pages.command_line().splitlines() if line.startswith("| `")]
    assert len(rows) > 200 and not [row for row in rows if row.endswith("|  |")], "each says what it is"
    wrong = re.compile(r"\(absent|\bdefault (?!:)(?!image|policy)|``")
    assert not [row for row in rows if wrong.search(row)]
    assert "``" not in reference_pages.command_line().replace("```", ""), "Markdown's or reStructuredText's own marks"


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="some defaults are the system's")
def test_the_page_about_the_command_line_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """No help text tells of the processors, the variables, the terminal or the directories of who reads it."""
    asked = "import os; os.cpu_count = lambda: 61; os.sched_getaffinity = lambda _: {*range(61)}; " \
            "from tests import reference_pages; print(reference_pages.command_line(), end='')"  # fmt: skip
    names = ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR", "RINGFENCE_METRICS",
             "DOCKER_HOST")  # fmt: skip
    elsewhere = dict.fromkeys(names, str(tmp_path)) | {"COLUMNS": "40", "LANG": "C", "PROCTOR_SIGNING_SEED": "0" * 64,
                                                       "PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin",
                                                       "PYTHONUTF8": "1"}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", asked], env=elsewhere, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (reference_pages.command_line(), "")


@pytest.mark.skipif(sys.platform != "linux", reason="some defaults are the system's")
def test_the_page_about_the_api_is_current_and_has_every_public_name() -> None:
    written = reference_pages.PYTHON_API.read_text(encoding="utf-8")
    assert written == reference_pages.python_api(), "run python -m tests.reference_pages"
    assert all(f"## {name}\n" in written for name in ringfence._PUBLIC)


def test_what_public_names_return_is_described_too() -> None:
    page = reference_pages.python_api()
    for name in ("Box", "CallResult", "Change", "Changes", "Committed", "Handle", "Reward", "StrategyStatus", "Ticket"):
        assert f"\n### {name}\n" in page, name
    assert "\nawait Pool.run_async(" in page
    assert "\nHandle.read_stdout(" in page and "\n### Heard\n" in page, "of a base class"


def test_no_class_of_ours_in_a_type_is_left_out() -> None:
    page = reference_pages.python_api()
    public = [reference_pages._found(getattr(ringfence, name)) for name in ringfence._PUBLIC]
    described = [*public, *reference_pages._returned(public)]
    named = {one[:2] for each in described for _, classes in each.members for one in classes}
    missing = named - {each[:2] for each in described} - {*reference_pages._OF_OURS}
    assert not missing and all(f"class {name}" in page for _, name in named - {*reference_pages._OF_OURS})


@pytest.mark.skipif(sys.platform != "linux", reason="the numbers of errors are the system's")
def test_the_page_about_system_calls_is_current_and_has_every_rule() -> None:
    written = system_calls_page.PAGE.read_text(encoding="utf-8")
    assert written == system_calls_page.page(), "run python -m tests.reference_pages"
    used = [profiles.PROFILES[name] for name in (*programs._STRICT, *programs._WALLED)]
    rules = [rule for profile in used for rule in profile.rules]
    assert all(f"`{call}`" in written for rule in rules for call in rule.calls)
    assert all(rule.reason in written for rule in rules)
