"""Workspaces that can be undone: a base, a layer of changes, checkpoints of it, rollback and commit."""
