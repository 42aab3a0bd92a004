"""``index.html``: all tasks of a suite on one page, with a link to the report of each.

It needs no network, and its policy allows none. Every text is escaped (``report.markup``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfence import __version__
from ringfence.evidence import page as verifier
from ringfence.model.limits import format_size
from ringfence.model.printed import clock
from ringfence.proctor.report.markup import Markup, element, inside, words
from ringfence.proctor.signed.records import REPORT
from ringfence.proctor.suite.output import TASKS
from ringfence.proctor.suite.plot import picture
from ringfence.proctor.suite.results import Row, summary_of

_TEMPLATE = """<header>
<h1>@TITLE@</h1>
<p>@AGENT@</p>
</header>
<main>
@SUMMARY@
<div class="plot">@PLOT@</div>
@TABLE@
</main>
<footer><p>ringfence @VERSION@ · @KEY@ · manifest.json signs all bundles: proctor verify-suite</p></footer>
"""
_STYLE = """
body { max-width: 76rem; }
table { width: 100%; border-collapse: collapse; background: var(--sheet); font-size: 0.875rem; }
th, td { padding: 0.35rem 0.6rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.pass { color: var(--good); } .fail { color: var(--warn); } .compromised { color: var(--bad); }
.plot { margin: 1rem 0; overflow-x: auto; } .plot svg { width: 100%; height: auto; }
.figures { display: flex; flex-wrap: wrap; gap: 0.5rem 1.75rem; margin: 0 0 1rem; padding: 0; list-style: none; }
a { color: var(--accent); }
"""
_WORDS = ("tasks", "passed", "failed", "compromised", "without_verdict")
_HEADS = ("task", "result", "score", "violations", "wall", "cpu", "memory", "egress")
_NUMBERS = frozenset(_HEADS[2:])


def page(rows: Sequence[Row], *, title: str, agent: str, public_key: str) -> str:
    """Return it as one HTML document."""
    return verifier.document(
        _TEMPLATE, title=words(f"{title} · suite"), style=f"{verifier.verifier_style()}\n{_STYLE}", script="",
        TITLE=words(title), AGENT=element("code", agent), SUMMARY=_summary(rows), PLOT=picture(rows, title),
        TABLE=_table(rows), VERSION=words(__version__), KEY=element("code", public_key),
    )  # fmt: skip


def _summary(rows: Sequence[Row]) -> Markup:
    told = summary_of(rows)
    items = [element("li", element("strong", str(told[name])), f" {name.replace('_', ' ')}") for name in _WORDS]
    items.append(element("li", element("strong", f"{told['mean_score']:.3f}"), " mean score"))
    return element("ul", items, class_="figures")


def _table(rows: Sequence[Row]) -> Markup:
    heads = [element("th", name, class_="number" if name in _NUMBERS else "") for name in _HEADS]
    body = [element("tr", _cells(row)) for row in rows]
    return element("table", element("thead", element("tr", heads)), element("tbody", body))


def _cells(row: Row) -> Markup:
    cost = row.cost
    name = element("a", row.id, href=f"{TASKS}/{row.folder}/{REPORT}") if row.has_verdict else words(row.id)
    said = inside(element("span", row.word, class_=row.word), f" {row.error}" if row.error else "")
    figures = (f"{row.score:g}", str(row.violations), clock(cost.wall_s), f"{cost.cpu_s:.1f} s",
               format_size(cost.memory_bytes), format_size(cost.egress_bytes))  # fmt: skip
    shown = figures if row.has_verdict else ("",) * len(figures)
    return inside(element("td", name), element("td", said), [element("td", each, class_="number") for each in shown])
