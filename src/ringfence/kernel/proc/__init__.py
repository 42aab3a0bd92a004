"""What the kernel tells about processes, and what can be asked of them."""
