"""One file per kernel mechanism: the only ctypes, /proc and /sys of the package."""
