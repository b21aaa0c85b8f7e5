"""A hospital whose only way out is a proxy: a real one on the loopback, which is asked to CONNECT for everything.

The server's name leads nowhere but through the proxy, so whatever reaches it went that way.
"""

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeResponse, PullMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from fedsmall.clients.fleet import Fleet
from fedsmall.sim.consortium import admission, flower_cli, keys, members, server
from fedsmall.sim.consortium.site import Site, programs

HOST = "fed.hospital.invalid"  # no name server knows it (RFC 2606)
ADDRESS = f"{HOST}:8443"
ANSWERS = {
    "activate-node": ActivateNodeResponse(node_id=7),
    "deactivate-node": DeactivateNodeResponse(),
    "send-node-heartbeat": SendNodeHeartbeatResponse(success=True),
    "pull-messages": PullMessagesResponse(),
}
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


class Gate(BaseHTTPRequestHandler):
    """Answers a registered site's calls, and nothing else, as the gate does."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(200, ANSWERS[self.path.rpartition("/")[2]].SerializeToString())

    def do_GET(self) -> None:
        self._say(403, b"")

    def _say(self, status: int, content: bytes) -> None:
        self.server.seen.append((self.path, self.client_address[1]))  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Nothing on the screen of a test."""


class Proxy:
    """Passes CONNECT on to ``upstream``; notes what it was asked for, and from which ports it dialled."""

    def __init__(self, upstream: int, refuses: str = "") -> None:
        self.upstream, self.refuses = upstream, refuses
        self.asked: list[str] = []
        self.credentials: list[str] = []
        self.ports: set[int] = set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self.listening.accept()
                threading.Thread(target=self._pass, args=(caller,), daemon=True).start()

    def _pass(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += caller.recv(1)
            first, *rest = head.decode().splitlines()
            self.asked.append(first)
            self.credentials += [line for line in rest if line.lower().startswith("proxy-authorization")]
            if self.refuses:
                caller.sendall(f"HTTP/1.1 {self.refuses}\r\nContent-Length: 0\r\n\r\n".encode())
                return
            with socket.create_connection(("127.0.0.1", self.upstream)) as far:
                self.ports.add(far.getsockname()[1])
                caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_copy, args=(far, caller), daemon=True)
                back.start()
                _copy(caller, far)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxy") / "c"
    members.create(folder, "rhine", HOST, 8443, listen="127.0.0.1", inner_port=18443, days=90)
    members.add_site(folder, "essen", None, days=90)
    keys.new_site_key(folder / "kits" / "essen" / "site.key")
    return folder


@pytest.fixture(scope="module")
def gate(consortium) -> Iterator[ThreadingHTTPServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(consortium / "server" / "server.crt", consortium / "server" / "server.key")
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    serving.seen = []  # type: ignore[attr-defined]
    serving.daemon_threads = True
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture
def site(consortium, tmp_path):
    return Site(consortium / "kits" / "essen", tmp_path)


@pytest.fixture
def proxied(gate, monkeypatch):
    """The gate behind a proxy that the environment names, and nothing of the tests' own surroundings."""
    proxy = Proxy(gate.server_address[1])
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    gate.seen.clear()
    yield proxy
    proxy.listening.close()


def test_all_that_a_site_ever_dials_goes_through_the_proxy(site, gate, proxied):
    authority, note = site.kit / "ca.crt", site.home / "node"

    assert admission.check_server(ADDRESS, authority) >= 88
    assert "lets this site in" in admission.check_admission(ADDRESS, authority, site.key, note, "2099-01-01")
    fleet = Fleet(ADDRESS, authority.read_bytes(), site.key, note)
    assert fleet.connect()
    assert fleet.pull() is None
    fleet.close()

    paths = [path.rpartition("/")[2] for path, _ in gate.seen]
    assert paths.count("") == 2
    assert {"activate-node", "pull-messages", "deactivate-node"} <= set(paths)
    assert {port for _, port in gate.seen} <= proxied.ports
    assert set(proxied.asked) == {f"CONNECT {ADDRESS} HTTP/1.1"}


def test_without_the_proxy_nothing_is_reached(site, proxied, monkeypatch):
    monkeypatch.delenv("HTTPS_PROXY")

    with pytest.raises(ValueError, match=rf"^{ADDRESS} cannot be reached \(.*\); is the server up\?$"):
        admission.check_server(ADDRESS, site.kit / "ca.crt")
    assert not proxied.asked


def test_what_is_excepted_is_dialled_without_the_proxy(site, proxied, monkeypatch):
    monkeypatch.setenv("NO_PROXY", HOST)

    with pytest.raises(ValueError, match="cannot be reached"):
        admission.check_server(ADDRESS, site.kit / "ca.crt")
    assert not proxied.asked


def test_a_proxys_user_and_password_are_sent_to_it_and_told_to_nobody(site, proxied, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", proxied.url.replace("//", "//us:secret@"))

    admission.check_server(ADDRESS, site.kit / "ca.crt")

    assert proxied.credentials == ["Proxy-Authorization: Basic dXM6c2VjcmV0"]
    assert admission.proxy_of(ADDRESS) == urlparse(proxied.url).netloc


@pytest.mark.parametrize("refusal", ["407 Proxy Authentication Required", "403 Forbidden"])
def test_a_proxy_that_refuses_is_told_as_that(site, gate, proxied, monkeypatch, refusal):
    strict = Proxy(gate.server_address[1], refusal)
    monkeypatch.setenv("HTTPS_PROXY", strict.url.replace("//", "//us:secret@"))

    with pytest.raises(ValueError, match=f"the proxy 127.0.0.1.* does not let this site through.*{refusal}") as told:
        admission.check_server(ADDRESS, site.kit / "ca.crt")
    assert "secret" not in str(told.value)


def test_a_proxy_that_is_not_there_and_one_that_opens_tls_are_told(
    site, consortium, gate, proxied, tmp_path, monkeypatch
):
    members.create(tmp_path / "o", "other", "elsewhere", 1, listen="127.0.0.1", inner_port=2, days=1)

    with pytest.raises(ValueError, match=r"kit does not trust: .*; if the proxy 127\.0\.0\.1:\d+ inspects TLS"):
        admission.check_server(ADDRESS, tmp_path / "o" / "ca" / "ca.crt")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"cannot be reached through the proxy 127\.0\.0\.1:1 \("):
        admission.check_server(ADDRESS, site.kit / "ca.crt")


def test_the_programs_of_a_site_take_the_proxy_and_those_on_one_machine_do_not(
    site, consortium, proxied, tmp_path, monkeypatch
):
    monkeypatch.setenv("no_proxy", "intern.example")
    (tmp_path / "nginx").touch(mode=0o755)  # listed here, never started
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert not any("no_proxy" in program.environment for program in programs(site, None))
    for program in server.programs(consortium, members.load(consortium)):
        if program.name != "gate":
            assert program.environment["no_proxy"] == "intern.example,127.0.0.1,localhost"


def test_the_coordinators_own_commands_pass_the_proxy_by(consortium, gate, proxied):
    port = gate.server_address[1]

    assert flower_cli.healthy(f"localhost:{port}", consortium / "ca" / "ca.crt")
    assert not proxied.asked
    flower_cli.write_connection(consortium / "flwr", "superlink:18443", consortium / "ca" / "ca.crt")
    assert flower_cli._superlink(consortium / "flwr") == ["superlink"]
    assert os.environ["HTTPS_PROXY"] == proxied.url
