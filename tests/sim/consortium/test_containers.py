"""The image and the compose file in a Docker engine: the demonstration, its walls and its limits. Marked docker."""

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedsmall.sim.consortium import keys
from tests import ROOT
from tests.sim.consortium.test_docker import SERVICES

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(
        not os.environ.get("FEDSMALL_DOCKER"), reason="set FEDSMALL_DOCKER=1 (and BASE) to build and run"
    ),
]
SITES = ("essen", "bonn", "ulm")
RUNNING = sorted(set(SERVICES) - {"provision", "coordinator"})
BASE = f"BASE={os.environ.get('BASE', 'debian:bookworm-slim')}"
UNITS = {"m": 2**20, "g": 2**30}
HOG = "x = []\nwhile True: x.append(bytearray(b'x' * 20_000_000))"
NONE = re.compile(r"(?m)^(?:\x1b\[[\d;]*m|#\d+ [\d.]+ )*No package can be had: no index is reached").search
FORKS = "i=0; while [ $i -lt 300 ]; do sleep 5 & i=$((i + 1)); done; wait"


def docker(*words, check=True):
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=check, timeout=600)


@pytest.fixture(scope="module", autouse=True)
def engine():
    try:
        answers = docker("info", check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        answers = False
    if not answers:
        pytest.skip("there is no Docker engine here")


@pytest.fixture(scope="module")
def demonstration():
    """What docker/demo.sh says; its containers stay up for the tests, and go after them."""
    script = str(ROOT / "docker" / "demo.sh")
    done = subprocess.run(
        [script], env={**os.environ, "KEEP": "1"}, capture_output=True, text=True, check=False, timeout=3600
    )
    yield done
    subprocess.run([script, "down"], capture_output=True, check=False, timeout=600)


@pytest.fixture
def containers(demonstration):
    """The ids of the containers that run on, by service."""
    ids = docker("ps", "-q", "--no-trunc", "--filter", "label=com.docker.compose.project=fedsmall-demo").stdout.split()
    rows = {row["Config"]["Labels"]["com.docker.compose.service"]: row["Id"] for row in inspected(ids)}
    assert sorted(rows) == RUNNING
    return rows


def inspected(ids):
    return json.loads(docker("inspect", *ids).stdout)


def inside(container, command):
    """What a shell in the container says to a command, and its exit code."""
    done = docker("exec", container, "sh", "-c", command, check=False)
    return done.returncode, done.stdout + done.stderr


def found(container, name):
    """Files of that name anywhere in a container, its volumes too."""
    return inside(container, f"find / -name {name} -not -path '/proc/*' -not -path '/sys/*' 2>/dev/null")[1].split()


def states(containers):
    """When each container began, and how often it was begun anew."""
    return {row["Id"]: (row["State"]["StartedAt"], row["RestartCount"]) for row in inspected(containers.values())}


def test_the_demonstration_comes_up_and_finishes(demonstration):
    said = demonstration.stdout + demonstration.stderr

    assert demonstration.returncode == 0, said[-3000:]
    assert "finished after 8 communication rounds" in said
    assert "accuracy 0.9" in said


def test_the_engine_holds_every_container_to_its_limits(containers):
    for name, container in containers.items():
        (row,) = inspected([container])
        host, limit = row["HostConfig"], SERVICES[name]["mem_limit"]

        assert host["Memory"] == host["MemorySwap"] == int(limit[:-1]) * UNITS[limit[-1]]
        assert host["PidsLimit"] == SERVICES[name]["pids_limit"]
        assert host["ReadonlyRootfs"] is True
        assert row["Config"]["User"] == "fedsmall"


@pytest.mark.parametrize("name", RUNNING)
def test_no_container_has_rights_or_writes_its_root(containers, name):
    _, status = inside(containers[name], "cat /proc/1/status")
    rights = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    assert [int(rights[f"Cap{which}"], 16) for which in ("Prm", "Eff", "Bnd", "Inh", "Amb")] == [0] * 5
    assert rights["NoNewPrivs"] == "1"
    assert set(rights["Uid"].split()) == {"10001"}
    for place in ("/x", "/opt/fedsmall/x", "/usr/local/bin/x", "/src/x"):
        code, said = inside(containers[name], f"touch {place}")
        assert code != 0
        assert "Read-only file system" in said


def test_the_authoritys_key_is_in_no_container_that_runs(containers):
    for container in containers.values():
        assert found(container, "ca.key") == []


def test_the_gate_has_its_own_key_and_no_other_secret(containers):
    assert found(containers["gate"], "server.key") == ["/consortium/server/server.key"]
    assert found(containers["gate"], "superexec.secret") == []
    assert found(containers["gate"], "site.key") == []


@pytest.mark.parametrize("site", SITES)
def test_a_station_has_the_data_and_neither_key_nor_network(containers, site):
    station, link = containers[f"{site}-station"], containers[site]

    assert found(station, "hospital.csv") == ["/data/hospital.csv"]
    assert found(link, "hospital.csv") == []
    assert found(station, "site.key") == []
    assert found(link, "site.key") == ["/kit/site.key"]
    assert inside(station, "ls /sys/class/net")[1].split() == ["lo"]
    assert len(inside(station, "cat /proc/net/route")[1].splitlines()) == 1  # the heading


DIAL = "python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)' {} {}"


@pytest.mark.parametrize("site", SITES)
def test_a_site_reaches_the_gate_and_nobody_else(containers, site):
    addresses = {
        name: [net["IPAddress"] for net in row["NetworkSettings"]["Networks"].values() if net["IPAddress"]]
        for name, row in zip(containers, inspected(containers.values()), strict=True)
    }
    others = set(SITES) - {site}

    assert inside(containers[site], DIAL.format("gate", 8443))[0] == 0
    for name, port in [("superlink", 18443), *((other, 8443) for other in others)]:
        for address in [name, *addresses[name]]:
            code, said = inside(containers[site], DIAL.format(address, port))
            assert code != 0
            assert "Connection refused" not in said  # there would be a way
    assert inside(containers[site], DIAL.format("192.0.2.1", 443))[0] != 0  # an address of nobody (RFC 5737)


@pytest.mark.parametrize("name", ["gate", "essen-station"])
def test_who_takes_more_memory_than_the_limit_is_killed_and_all_others_go_on(containers, name):
    before = states(containers)

    done = docker("exec", containers[name], "python3", "-c", HOG, check=False)

    assert done.returncode == 137
    assert states(containers) == before


def test_who_starts_more_processes_than_the_limit_gets_no_more_and_all_others_go_on(containers):
    before = states(containers)

    _, said = inside(containers["gate"], FORKS)

    assert "Cannot fork" in said
    assert states(containers) == before


def test_a_station_that_is_killed_comes_back(containers):
    container = containers["bonn-station"]
    docker("exec", container, "python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")

    for _ in range(120):
        (row,) = inspected([container])
        if row["RestartCount"] == 1 and row["State"]["Running"]:
            return
        time.sleep(1)
    pytest.fail("the station was not started again")


@pytest.fixture
def context(tmp_path):
    """The tree as it is built from, without wheels."""
    kept_back = shutil.ignore_patterns(".*", "*.whl", "*.tar.gz", "*.crt", "tests", "runs")
    context = shutil.copytree(ROOT, tmp_path / "context", ignore=kept_back)
    for name in ("wheels", "ca"):
        (context / "docker" / name).mkdir(exist_ok=True)
        shutil.copy(ROOT / "docker" / name / ".gitignore", context / "docker" / name)
    return context


def built(context, *words):
    command = ["docker", "build", *words, "-f", "docker/Dockerfile", "--build-arg", BASE, "."]
    done = subprocess.run(command, cwd=context, capture_output=True, text=True, check=False, timeout=1800)
    return done.returncode, done.stdout + done.stderr


def test_a_build_without_network_and_wheels_says_so_in_one_line(context):
    code, said = built(context, "--network", "none")

    assert code != 0
    assert NONE(said)
    assert "Could not fetch URL" in said
    assert "Retrying" not in said


class Inspecting(BaseHTTPRequestHandler):
    """A proxy that opens TLS: it answers CONNECT itself, and as a package index that has one package."""

    def do_CONNECT(self):
        self.send_response(200)
        self.end_headers()
        plain = self.rfile, self.wfile
        with (
            contextlib.suppress(OSError),
            self.server.context.wrap_socket(self.connection, server_side=True) as line,
            line.makefile("rb") as self.rfile,
            line.makefile("wb", 0) as self.wfile,
        ):
            self.handle_one_request()
        self.rfile, self.wfile = plain
        self.close_connection = True

    def do_GET(self):
        self.server.asked.append(self.path)
        wheel = self.server.wheel
        pages = {
            "/simple/safetensors/": f'<a href="/{escape(wheel.name)}">{wheel.name}</a>'.encode(),
            f"/{wheel.name}": wheel.read_bytes(),
        }
        content = pages.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *words):
        """Nothing on the screen of a test."""


@pytest.fixture
def proxy(tmp_path):
    """The proxy on the loopback; its authority's certificate is in ``tmp_path/ca.crt``."""
    wheels = sorted((ROOT / "docker" / "wheels").glob("safetensors-*.whl"))
    if not wheels:
        pytest.skip("docker/wheels/ does not hold safetensors (docker/README.md)")
    keys.new_authority(tmp_path, "proxy", 1)
    keys.new_server_certificate(tmp_path, tmp_path, ["pypi.org", "files.pythonhosted.org"], 1)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Inspecting)
    serving.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    serving.wheel, serving.asked = wheels[0], []
    serving.daemon_threads = True
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield serving
    serving.shutdown()
    serving.server_close()


def behind(proxy, context):
    address = f"http://127.0.0.1:{proxy.server_address[1]}"
    names = [word for name in ("HTTPS_PROXY", "https_proxy") for word in ("--build-arg", f"{name}={address}")]
    return built(context, "--network", "host", "--no-cache", *names)


def test_behind_a_proxy_that_opens_tls_the_build_trusts_its_certificate_and_else_says_pips_own_error(
    context, proxy, tmp_path
):
    code, said = behind(proxy, context)

    assert code != 0
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert NONE(said)
    assert proxy.asked == []

    shutil.copy(tmp_path / "ca.crt", context / "docker" / "ca" / "proxy.crt")
    code, said = behind(proxy, context)

    assert f"/{proxy.wheel.name}" in proxy.asked  # the first package came through it
    assert not NONE(said)
    assert "/simple/torch/" in proxy.asked  # the next, which this proxy has not
    assert code != 0
