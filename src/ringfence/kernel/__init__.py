"""Mechanisms of the Linux kernel, one room each: the only ctypes, /proc and /sys. They know no job, policy or role."""
