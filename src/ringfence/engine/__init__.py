"""The main path: a job under a policy becomes an outcome."""
