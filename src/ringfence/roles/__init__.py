"""One file per process, and what these processes share. Each role says what runs it, its parent and what it holds."""
