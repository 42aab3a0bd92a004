"""Container engines, docker or podman, used through their commands: build and read images, unpack their roots once."""
