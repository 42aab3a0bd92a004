"""Sandboxes that live: made, visited, rolled back, committed and destroyed by id, kept in directories."""
