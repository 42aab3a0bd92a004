"""Filters of system calls, and the calls that a filter tells of."""
