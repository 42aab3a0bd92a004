"""The process level of Windows: job objects and a thread that watches them."""
