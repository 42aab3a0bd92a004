"""The way that the kernel takes to a path, and who could make it lead elsewhere; and paths of URLs."""
