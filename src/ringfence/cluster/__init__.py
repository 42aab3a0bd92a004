"""Many machines, by Ray: the connection, its authentication, tasks whose results come exactly once. Knows no sandbox.

``ray_module`` is what is used of Ray, ``authentication`` what is asked of a cluster, ``blobs`` inputs by their content,
``dispatch`` hands tasks out, ``routes`` keeps them from the cluster. Where a task runs is Ray's decision, by the
resource ``sandbox_slots`` of each node.
"""
