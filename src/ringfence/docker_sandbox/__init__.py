"""Strategies in containers: configuration, executor, warm pool, monitor; a door on engine, container and validation."""
