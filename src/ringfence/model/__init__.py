"""Frozen data that every layer speaks: policy, job, outcome, events. Standard library only."""
