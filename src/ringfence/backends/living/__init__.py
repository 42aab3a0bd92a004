"""A strict box that lives between visits, from the caller's side."""
