"""The level container: what it promises, and containers that take visits."""
