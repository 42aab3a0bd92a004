"""From a layer to its base: what goes over, who else changed it, and who wins."""
