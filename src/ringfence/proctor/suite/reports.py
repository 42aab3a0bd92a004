"""What a suite writes once all its tasks have ended. The manifest comes last: where it is, everything else is."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ringfence.evidence.bundle import encode_bundle, write_beside
from ringfence.evidence.keys import SigningKey
from ringfence.model.printed import json_text
from ringfence.proctor.suite import harbor_layout, manifest
from ringfence.proctor.suite.entry import Entry, Order
from ringfence.proctor.suite.index_page import page
from ringfence.proctor.suite.junit import junit
from ringfence.proctor.suite.output import TASKS
from ringfence.proctor.suite.plot import picture
from ringfence.proctor.suite.results import Row, document
from ringfence.roles.removal import remove_tree

RESULTS, JUNIT, PLOT, INDEX = "results.json", "junit.xml", "plot.svg", "index.html"


def write_reports(
    folder: str, rows: Sequence[Row], entries: Sequence[Entry], order: Order, key: SigningKey, title: str
) -> None:
    """Write all of them; OSError or EvidenceError where one can't be written."""
    withdraw(folder)
    for row in rows:
        if not row.has_verdict:
            remove_tree(os.path.join(folder, TASKS, row.folder))  # of a task that is there twice
    told = document(rows, agent=order.agent, suite=order.suite, public_key=key.public_hex)
    texts = {
        RESULTS: json_text(told) + "\n",
        JUNIT: junit(rows, title),
        PLOT: picture(rows, title),
        INDEX: page(rows, title=title, agent=order.agent, public_key=key.public_hex),
    }
    for name, text in texts.items():
        write_beside(os.path.join(folder, name), text.encode("utf-8", "backslashreplace"))
    by_id = {entry.id: entry for entry in entries}
    harbor_layout.write_job(folder, rows, by_id, agent=order.agent, suite=order.suite)
    signed = manifest.made(rows, agent=order.agent, suite=order.suite, key=key)
    write_beside(os.path.join(folder, manifest.NAME), encode_bundle(signed))


def withdraw(folder: str) -> None:
    """Remove what an earlier run wrote about the whole suite: while tasks run, it is not true."""
    for name in (manifest.NAME, RESULTS, JUNIT, PLOT, INDEX):
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            os.unlink(path)
