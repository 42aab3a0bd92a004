"""Mounts, namespaces and the privileges that they need."""
