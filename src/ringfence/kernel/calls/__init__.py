"""System calls as data: a table of them, and what executes it, natively or through ctypes."""
