"""What a layer changed, for people: paths, and texts of what became of them."""
