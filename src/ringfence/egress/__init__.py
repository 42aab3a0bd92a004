"""A network with a list: what a sandbox may reach, and the gateway that alone opens connections for it."""
