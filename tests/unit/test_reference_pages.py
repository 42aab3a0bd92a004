"""The generated pages of the reference are what the code makes of them today."""

from __future__ import annotations

import sys

import pytest
from tests import reference_pages

import ringfence
from ringfence.cli import COMMANDS


@pytest.mark.skipif(sys.platform != "linux", reason="some defaults are the system's")
def test_the_page_about_the_command_line_is_current() -> None:
    written = reference_pages.COMMAND_LINE.read_text(encoding="utf-8")
    assert written == reference_pages.command_line(), "run python -m tests.reference_pages"
    assert all(f"### ringfence {name}\n" in written for name in COMMANDS)


@pytest.mark.skipif(sys.platform != "linux", reason="some defaults are the system's")
def test_the_page_about_the_api_is_current_and_has_every_public_name() -> None:
    written = reference_pages.PYTHON_API.read_text(encoding="utf-8")
    assert written == reference_pages.python_api(), "run python -m tests.reference_pages"
    assert all(f"## {name}\n" in written for name in ringfence._PUBLIC)
