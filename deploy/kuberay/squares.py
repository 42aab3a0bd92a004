"""Twenty jobs over the workers of deploy/kuberay/raycluster.yaml, each in a sandbox of its own.

    kubectl exec -i HEAD -- python3 - < deploy/kuberay/squares.py
"""

from ringfence import SandboxPolicy
from ringfence.integrations.ray import RayPool

with RayPool(SandboxPolicy(isolation="strict", wall_time_s=30), address="127.0.0.1:6379") as pool:
    print(pool.map(lambda number: number * number, range(20)))
