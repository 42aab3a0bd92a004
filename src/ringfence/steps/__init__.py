"""The ordered steps between fork and exec, as data, and what executes them."""
