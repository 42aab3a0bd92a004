"""Running processes in checkpoints."""
