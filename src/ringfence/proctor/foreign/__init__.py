"""Tasks of other benchmarks: each is read into our own ``Task``, and run by the one proctored run."""
