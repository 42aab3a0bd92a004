"""``report.html``: one page about a run that a person can read, and that checks the bundle it is about."""
