"""What Linux and macOS share: sessions, rlimits, the spawner, and the process that leads a visit."""
