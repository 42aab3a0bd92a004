"""The examples of docs/reference/service.md: a service at its own address, its settings, tokens, proxy and clients."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ringfence.service.tokens import add_token, digest_of
from tests import packages
from tests.examples import filled, program, written
from tests.examples.own_network import OwnNetwork, own_network

if sys.platform != "linux":
    pytest.skip("needs network namespaces", allow_module_level=True)

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
ADDRESS = "http://127.0.0.1:8700"
NAME = "sandbox.example.org"


def test_a_service_that_was_just_installed_does_what_the_client_asks(tmp_path: Path) -> None:
    # tests/release/test_extras.py installs the extras; here it is what the tests run with.
    program(tmp_path, "pip", 'echo "$@" > pip.txt')
    start = written("docs/reference/service.md", "pip install")
    (tmp_path / "example.py").write_text(written("docs/reference/service.md", "from ringfence"))
    with own_network(tmp_path) as network, network.serving(start, f"{ADDRESS}/healthz") as said:
        printed = network.shell("python ../example.py")
    assert (tmp_path / "work" / "pip.txt").read_text() == "install .[service]\n"
    assert f"{ADDRESS}/" in said.read_text().splitlines()
    hello, got, *diff, product = printed.splitlines()
    assert (hello, got, product) == ("b'hello\\n'", "b'42\\n'", "42")
    assert "+42" in diff


class Served(NamedTuple):
    """A service in a network of its own, and its tokens by name."""

    network: OwnNetwork
    token: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.network.folder

    def asked(self, who: str, path: str, body: str = "") -> tuple[int, Any]:
        """(status, JSON) of a request by curl."""
        sent = ["-H", "content-type: application/json", "-d", body] if body else []
        token = f"Authorization: Bearer {self.token.get(who, 'rf_9f2c')}"
        answer = self.network.shell(shlex.join(["curl", "-sw", "%{http_code}", "-H", token, *sent, f"{ADDRESS}{path}"]))
        is_json = answer.startswith("{")
        return int(answer[-3:]), json.loads(answer[:-3]) if is_json else answer[:-3]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One with the settings and the tokens of the page, on a machine that has all paths which they name."""
    folder = tmp_path_factory.mktemp("service")
    for each in ("work", "srv/project", "lib/ringfence", "ssl"):
        (folder / each).mkdir(parents=True)
    (folder / "hosts").write_text(f"127.0.0.1 localhost {NAME}\n")
    (folder / "work" / "service.yaml").write_text(written("docs/reference/service.md", "host: 127.0."))
    token = _tokens(folder)
    _certify(folder / "ssl")
    own = {"/etc/hosts": "hosts", "/etc/ssl": "ssl", "/srv": "srv", "/var/lib": "lib"}
    places = {place: folder / name for place, name in own.items()}
    start = "ringfence serve --config service.yaml"
    with own_network(folder, places) as network, network.serving(start, f"{ADDRESS}/healthz"):
        yield Served(network, token)


def _tokens(folder: Path) -> dict[str, str]:
    """Write the file of the page, and add two that other parts of the page need."""
    token = {"ci": "rf_of_ci", "notebooks": "rf_of_notebooks"}
    # The page has the beginning of two digests, whose tokens nobody has.
    digests = {"9f2c…": digest_of(token["ci"]).hex(), "41d8…": digest_of(token["notebooks"]).hex()}
    path = folder / "work" / "tokens.yaml"
    path.write_text(filled(written("docs/reference/service.md", "- name: ci"), **digests))
    token["owner"] = add_token(str(path), "owner", ("read", "box", "commit"))
    token["prometheus"] = add_token(str(path), "prometheus", ("operator",))
    return token


def _certify(folder: Path) -> None:
    name = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", "sandbox.key", "-out", "sandbox.pem", "-days", "2", *name]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


COMMIT = """
from ringfence.client import Client
with Client(policy="online").open(workspace="project") as box:
    box.put("new.txt", b"from a box")
    box.commit()
"""


def test_a_service_with_these_settings_has_the_policies_the_workspace_and_the_limits(served: Served) -> None:
    (served.folder / "commit.py").write_text(COMMIT)
    served.network.shell("python ../commit.py", {"RINGFENCE_TOKEN": served.token["owner"]})
    _, found = served.asked("owner", "/v1/policies")
    _, status = served.asked("owner", "/v1/status")
    assert (served.folder / "srv" / "project" / "new.txt").read_text() == "from a box"
    assert any((served.folder / "lib" / "ringfence").iterdir()), "its state"
    default, online = found["policies"]
    assert (default["warm"], default["policy"]["isolation"], default["policy"]["mem_bytes"]) == (4, "strict", 512 << 20)
    assert online["policy"]["network"] == ["pypi.org", "files.pythonhosted.org"]
    most = [status[name]["most"] for name in ("sandboxes", "memory_bytes", "queue")]
    assert most == [16, 8 << 30, 256]


def test_two_tokens_are_two_tenants(served: Served) -> None:
    ran, run = served.asked("ci", "/v1/runs", '{"argv": ["true"]}')
    assert (ran, run["outcome"]["status"]) == (200, "OK")
    assert served.asked("ci", f"/v1/runs/{run['id']}")[0] == 200
    assert served.asked("notebooks", f"/v1/runs/{run['id']}")[0] == 404
    assert served.asked("nobody", f"/v1/runs/{run['id']}")[0] == 401


def test_a_token_may_do_what_its_entry_says(served: Served) -> None:
    box, online, project = "{}", '{"argv": ["true"], "policy": "online"}', '{"workspace": "project"}'
    assert (served.asked("ci", "/v1/boxes", box)[0], served.asked("notebooks", "/v1/boxes", box)[0]) == (403, 201)
    assert (served.asked("ci", "/v1/runs", online)[0], served.asked("notebooks", "/v1/runs", online)[0]) == (400, 200)
    assert served.asked("notebooks", "/v1/boxes", project)[0] == 201
    tenant = served.asked("ci", "/v1/status")[1]["tenant"]
    assert (tenant["sandboxes"]["most"], tenant["memory_bytes"]["most"]) == (4, 2 << 30)
    assert tenant["runs_per_minute"] == 600


def test_curl_runs_follows_finds_and_ends_a_run(served: Served) -> None:
    run, events, outcome, end = written("docs/reference/service.md", "curl -s http").splitlines()
    # The second run has to last until it is ended, and nobody waits for it.
    lasting = filled(run, **{'["echo", "hello"]}': '["sleep", "1000"], "wait": false}'})
    own = {"TOKEN": served.token["ci"]}
    done = json.loads(served.network.shell(run, own))
    told = served.network.shell(filled(events, ID=done["id"]), own)
    found = json.loads(served.network.shell(filled(outcome, ID=done["id"]), own))
    begun = json.loads(served.network.shell(lasting, own))
    served.network.shell(filled(end, ID=begun["id"]), own)
    ended = json.loads(served.network.shell(filled(outcome, ID=begun["id"]), own))
    newest = [each["id"] for each in served.asked("ci", "/v1/runs")[1]["runs"]][:2]
    assert (done["state"], done["outcome"]["stdout"]) == ("ended", "hello\n") and found == done
    assert "id: 3\n" in told and "id: 2\n" not in told and "event: end\n" in told
    assert ended["outcome"]["status"] == "KILLED_KILL"
    assert newest == [begun["id"], done["id"]]


def test_prometheus_finds_the_metrics_where_the_page_says(served: Served) -> None:
    # A token of this service, in a directory that this machine has.
    own = {"/etc/prometheus": str(served.folder)}
    (job,) = yaml.safe_load(filled(written("docs/reference/service.md", "scrape_configs"), **own))["scrape_configs"]
    ((target,),) = (each["targets"] for each in job["static_configs"])
    file = Path(job["authorization"]["credentials_file"])
    file.write_text(served.token["prometheus"])
    scrape = f'curl -sf http://{target}/metrics -H "Authorization: Bearer $(cat {shlex.quote(str(file))})"'
    assert "\nringfence_service_sandboxes_limit 16\n" in served.network.shell(scrape)
    assert served.asked("ci", "/metrics")[0] == 403


AROUND = """
user root;  # who starts it: others may not enter the directory of a test
daemon off;
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    include server.conf;
}
"""
THROUGH_THE_PROXY = """
import threading
from ringfence.client import Client

heard = threading.Event()
with Client("https://sandbox.example.org") as remote, remote.open() as box:
    box.put("large", bytes(20 << 20))
    run = box.start(["sh", "-c", "wc -c < large; read word; echo $word"], on_output=lambda *_: heard.set())
    assert heard.wait(60), "the output comes while the program waits for its input"
    run.write(b"heard\\n")
    print(run.wait(60).stdout.decode())
"""


@pytest.mark.long
def test_nginx_passes_requests_files_and_events_on(served: Served) -> None:
    folder, network = served.folder, served.network
    nginx = [packages.program("nginx"), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
    (folder / "nginx.conf").write_text(AROUND)
    (folder / "server.conf").write_text(written("docs/reference/service.md", "server {"))
    (folder / "client.py").write_text(THROUGH_THE_PROXY)
    trusts = {"SSL_CERT_FILE": "/etc/ssl/sandbox.pem"}
    with network.serving(shlex.join(nginx), f"https://{NAME}/healthz"):
        printed = network.shell("python ../client.py", trusts | {"RINGFENCE_TOKEN": served.token["notebooks"]})
        ask = f"curl -so /dev/null -w '%{{http_code}}' --cacert $SSL_CERT_FILE https://{NAME}/v1/runs -H Origin:https://"
        assert network.shell(f"{ask}{NAME}", trusts) == "401", "its own page, without a token"
        assert network.shell(f"{ask}www.example.net", trusts) == "403", "a page of another site"
    assert printed.split() == [str(20 << 20), "heard"]
