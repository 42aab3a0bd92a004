"""The way that the kernel takes to a path, and who could have it lead elsewhere."""
