"""Container engines, docker or podman by their commands: images are built, read, and their roots are unpacked once."""
