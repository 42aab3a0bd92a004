"""What the process level has on macOS beside what POSIX shares."""
