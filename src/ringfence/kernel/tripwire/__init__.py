"""Hidden paths that record who touches them: a FUSE file system."""
