"""Writes docs/status.md."""

from tests.status.page import PATH, text

PATH.write_text(text(), encoding="utf-8")
