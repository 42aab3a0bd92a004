"""``RayPool``: the pool of sandboxes over a Ray cluster (docs/how-to/ray.md). Needs the extra ``ray``."""

from ringfence.integrations.ray.pool import RayPool

__all__ = ["RayPool"]
