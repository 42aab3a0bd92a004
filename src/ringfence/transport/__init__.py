"""What processes of ours send each other: frames and descriptors."""
