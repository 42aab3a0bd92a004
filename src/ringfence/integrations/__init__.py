"""Doors for other people's frameworks. Each is a package of its own and loads only when it is named."""
