"""Documents of ours on disk: whole or not at all, sealed, and the journals of what is under way."""
