"""Python work on its way into a sandbox, the forked interpreter that runs it, and the value that comes back."""
