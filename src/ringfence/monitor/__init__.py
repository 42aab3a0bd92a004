"""What sandboxes use, measured from outside; nothing here enforces."""
