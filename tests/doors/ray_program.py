"""A cluster of Ray on this machine, and what a pool over it does: run with Ray at hand, it prints one JSON object.

    python -m tests.doors.ray_program short|kill|suite
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from typing import Any

from bench.ray_cluster import cluster


def attack(places: list[list[Any]], paths: list[str]) -> list[str]:
    """Runs in a sandbox, and as the control on the host: what of the cluster can be reached."""
    import os
    import socket

    reached = []
    for host, port in places:
        with socket.socket() as link:
            link.settimeout(5)
            if link.connect_ex((host, port)) == 0:
                reached.append(f"port {port}")
    for path in paths:
        try:
            if path.endswith("token"):
                with open(path) as file:
                    reached.append(file.read())
            else:
                link = socket.socket(socket.AF_UNIX)
                link.connect(path)
                reached.append(os.path.basename(path))
        except OSError:
            continue
    return reached


def _places(made: Any) -> tuple[list[list[Any]], list[str]]:
    import ray

    host, port = made.address.rsplit(":", 1)
    nodes = ray.nodes()
    places = [[host, int(port)], *([each["NodeManagerAddress"], each[name]] for each in nodes
                                   for name in ("NodeManagerPort", "ObjectManagerPort"))]  # fmt: skip
    names = ("RayletSocketName", "ObjectStoreSocketName")
    return places, [os.environ["RAY_AUTH_TOKEN_PATH"], *(each[name] for each in nodes for name in names)]


def short() -> dict[str, object]:
    from ringfence import SandboxPolicy
    from ringfence.integrations.ray import RayPool

    policy = SandboxPolicy(isolation="strict", wall_time_s=60)
    with cluster([0, 2]) as made, RayPool(policy, address=made.address) as pool:
        places, paths = _places(made)
        return {
            "source": pool.run_source("print(1 + 1)").stdout.decode(),
            "call": pool.call(lambda a, b: a * b, 6, 7),
            "map": pool.map(lambda n: n * n, range(20)),
            "status": pool.run(["sh", "-c", "exit 3"]).rc,
            "attack": pool.call(attack, places, paths),
            "control": attack(places, paths),
            "places": len(places) + len(paths),
        }


def kill(count: int = 1500) -> dict[str, object]:
    """One of three nodes is killed with tasks in flight."""
    from ringfence import SandboxPolicy
    from ringfence.integrations.ray import RayPool

    policy = SandboxPolicy(isolation="strict", wall_time_s=60)
    with cluster([0, 1, 1, 1]) as made, RayPool(policy, address=made.address) as pool:
        places: list[int] = []
        wrong = 0
        for place, outcome in pool.run_sources([f"print({number})" for number in range(count)]):
            places.append(place)
            wrong += outcome.stdout != b"%d\n" % place
            if len(places) == count // 5:
                made.remove_node(made.others[0], allow_graceful=False)
        return {"count": count, "ended": len(places), "different": len(set(places)), "wrong": wrong}


def suite(count: int = 6) -> dict[str, object]:
    """A suite of tasks over two nodes, of which one is killed; and again, where all is done."""
    from threading import Timer

    from ringfence import cli

    with cluster([0, 2, 2]) as made, tempfile.TemporaryDirectory() as place:
        for number in range(count):
            task = os.path.join(place, "tasks", f"t{number}")
            for part in ("workspace", "oracle"):
                os.makedirs(os.path.join(task, part))
            texts = {"oracle/expected": f"{number}\n", "grade.sh": "cmp answer /oracle/expected\n",
                     "workspace/readme": "write the number\n", "instruction.md": f"{number}\n"}  # fmt: skip
            for name, text in texts.items():
                with open(os.path.join(task, name), "w") as file:
                    file.write(text)
        words = ["bench", f"{place}/tasks", "--agent", "sh -c 'cat /task/instruction.md > answer; sleep 2'",
                 "--out", f"{place}/out", "--jobs", "4", "--on", f"ray://{made.address}", "--json"]  # fmt: skip
        Timer(4, lambda: made.remove_node(made.others[0], allow_graceful=False)).start()
        codes = [cli.proctor_main(words), cli.proctor_main(words)]
        with open(f"{place}/out/results.json") as file:
            rows = json.load(file)["tasks"]
        return {"codes": codes, "count": count, "rows": [[row["id"], row["score"], row["reused"]] for row in rows]}


if __name__ == "__main__":
    socket.setdefaulttimeout(60)
    said = {"short": short, "kill": kill, "suite": suite}[sys.argv[1]]()
    print("\n" + json.dumps(said), flush=True)
