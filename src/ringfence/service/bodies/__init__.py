"""Bodies of requests: from bytes to a value of the shape that its route has."""
