"""ringfence: run code you do not trust, undo what it did, and prove what happened."""

__version__ = "0.1.0"
