"""The tests. ``python -m tests.run`` is what ``make test`` calls."""
