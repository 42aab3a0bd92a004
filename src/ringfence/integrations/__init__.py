"""Doors for other people's frameworks. Each is a package or a module of its own and loads only when it is named."""
