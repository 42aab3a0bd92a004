"""Writes docs/explanation/attack-corpus.md: ``python -m tests.escape.threat_table``."""

from __future__ import annotations

from pathlib import Path

from tests.escape.attack import PARTIAL, STRICT, Attack
from tests.escape.promises import FAMILIES, LEVELS, WITHOUT_NAMESPACES, corpus, levels_of
from tests.written_parts import WrittenPart

_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "attack-corpus.md"
WRITTEN = WrittenPart(
    _DOCUMENT, "<!-- the corpus: begin, written by tests/escape/threat_table.py -->", "<!-- the corpus: end -->"
)


def rendered() -> str:
    attacks = corpus()
    parts = [_families(attacks), _less(), *(_attacks(family, attacks) for family in FAMILIES)]
    return "\n\n".join(parts)


def _families(attacks: list[Attack]) -> str:
    rows = [[family, *(_count([a for a in attacks if a.family == family], level) for level in LEVELS)]
            for family in FAMILIES]  # fmt: skip
    rows.append(["together", *(_count(attacks, level) for level in LEVELS)])
    return _table(["family of attacks", *LEVELS], rows)


def _count(attacks: list[Attack], level: str) -> str:
    held = sum(level in levels_of(attack) for attack in attacks)
    words = {0: "not promised", len(attacks): f"all {held}"}
    return words.get(held, f"{held} of {len(attacks)}")


def _less() -> str:
    lines = [f"- {reason} ({family}): {', '.join(names)}" for reason, family, names in WITHOUT_NAMESPACES]
    return f"What `{STRICT}` promises and `{PARTIAL}` does not, and why:\n\n" + "\n".join(lines)


def _attacks(family: str, attacks: list[Attack]) -> str:
    rows = [[attack.name, _words(attack), *_cells(attack)] for attack in attacks if attack.family == family]
    head = f"<details><summary>{family}: {len(rows)} attacks</summary>"
    return f"{head}\n\n{_table(['attack', 'what must not happen', *LEVELS], rows)}\n\n</details>"


def _cells(attack: Attack) -> list[str]:
    return ["yes" if level in levels_of(attack) else "not promised" for level in LEVELS]


def _words(attack: Attack) -> str:
    return f"{attack.what} (where a control group is to be had)" if attack.held_by_group else attack.what


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    WRITTEN.write(rendered())
