"""A real nginx with the gate's configuration: a flood is refused there, and the calls of honest sites go on."""

import base64
import http.client
import socket
import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

import pytest
from flwr.supernode.node_auth_http_interceptor import FLEET_HTTP_PUBLIC_KEY_HEADER

from examples.loopback import free_ports
from fedsmall.clients.fleet import Fleet
from fedsmall.sim.consortium import flower_cli, gate, keys, members, server, supervisor
from fedsmall.sim.consortium.supervisor import Program
from tests.sim.consortium.test_proxy import Gate

pytestmark = pytest.mark.needs("nginx")
CALLS = 24  # more than any limit on strangers lets through at once
MANY = {"member": (1000, 100), "stranger": (1000, 100), "strangers": (1000, 100)}


class SuperLink(Gate):
    """Answers sites; whoever names another key has to wait until the test is done with it."""

    def setup(self):
        self.server.lines += 1
        super().setup()

    def do_POST(self):
        if self.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] not in self.server.known:
            self.server.released.wait(60)
        if self.path.endswith("push-object"):
            return self._say(200, self.rfile.read(int(self.headers["Content-Length"])))
        super().do_POST()


def admit(folder, name):
    members.add_site(folder, name, None, days=90)
    public = folder / f"{name}.key.pub"
    keys.new_site_key(public.with_suffix(""))
    members.add_site(folder, name, public, days=90)
    return gate.header(public.read_bytes())


@pytest.fixture
def folder(tmp_path):
    outer, inner = free_ports(2)
    folder = tmp_path / "c"
    members.create(folder, "rhine", "127.0.0.1", outer, listen="127.0.0.1", inner_port=inner, days=90)
    return folder


@pytest.fixture
def superlink(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
    serving = ThreadingHTTPServer(("127.0.0.1", members.load(folder).inner_port), SuperLink)
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    serving.seen, serving.known, serving.released, serving.lines = [], set(), threading.Event(), 0
    serving.daemon_threads = True
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield serving
    serving.released.set()
    serving.shutdown()
    serving.server_close()
    thread.join()


@contextmanager
def gate_up(folder):
    """The gate of the consortium in ``folder``, as `fedsmall server up` starts it."""
    program = Program("gate", gate.command(gate.write(members.load(folder), folder)))
    supervisor.start(server.process_folder(folder), [program])
    try:
        assert flower_cli.wait_until(lambda: listens(members.load(folder).port), 60)
        yield
    finally:
        supervisor.stop(server.process_folder(folder))


def listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def call(folder, key, source="127.0.0.1"):
    """The status that the gate answers a call with which names a key."""
    record = members.load(folder)
    context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.crt"))
    line = http.client.HTTPSConnection(
        record.host, record.port, timeout=60, source_address=(source, 0), context=context
    )
    try:
        line.request("POST", "/v1/fleet/pull-messages", b"", {FLEET_HTTP_PUBLIC_KEY_HEADER: key})
        return line.getresponse().status
    finally:
        line.close()


def at_once(folder, every_key, source="127.0.0.1"):
    with ThreadPoolExecutor(len(every_key)) as pool:
        return Counter(pool.map(lambda key: call(folder, key, source), every_key))


def invented(count):
    return [base64.b64encode(f"key {number}".encode()).decode() for number in range(count)]


def honest(folder, calls=60):
    """A resident's line that asks so often, one call after the other; the statuses in the gate's log since."""
    log = folder / "log" / "gate-access.log"
    before = log.read_text().count("\n")
    fleet = Fleet(
        members.load(folder).address, (folder / "ca/ca.crt").read_bytes(), folder / "bonn.key", folder / "node"
    )
    fleet.connect()
    for _ in range(calls):
        assert fleet.pull() is None
    fleet.close()
    lines = [line.split() for line in log.read_text().splitlines()[before:]]
    return {status for _, _, _, path, status, *_ in lines if path.endswith("/pull-messages")}


@contextmanager
def flooded(folder, superlink, every_key, passed, source="127.0.0.1"):
    """While so many calls wait at the server as are let ``passed``, and all others have been refused."""
    answers = Counter()

    def flood(key):
        answers[call(folder, key, source)] += 1

    flooding = [threading.Thread(target=flood, args=(key,)) for key in every_key]
    for one in flooding:
        one.start()
    assert flower_cli.wait_until(lambda: answers[503] == len(every_key) - passed, 60)
    yield
    superlink.released.set()
    for one in flooding:
        one.join()
    assert answers == {503: len(every_key) - passed, 200: passed}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_a_flood_is_refused_while_a_sites_calls_go_on_even_behind_the_same_address(folder, superlink, source):
    superlink.known = {admit(folder, "bonn")}
    _, most = gate.LIMITS["stranger"]

    with gate_up(folder), flooded(folder, superlink, invented(CALLS), most, source):
        assert honest(folder) == {"200"}


def test_calls_go_on_over_lines_that_are_open(folder, superlink):
    superlink.known = {admit(folder, "bonn")}

    with gate_up(folder):
        assert honest(folder) == {"200"}

    assert superlink.lines < 10  # for 62 calls


def test_strangers_from_many_addresses_have_no_more_than_all_together_may(folder, superlink, monkeypatch):
    superlink.released.set()
    monkeypatch.setattr(gate, "LIMITS", MANY | {"strangers": (2, 100)})

    with gate_up(folder), ThreadPoolExecutor(CALLS) as pool:
        addresses = [f"127.0.0.{number}" for number in range(2, 2 + CALLS)]
        answers = Counter(pool.map(lambda address: call(folder, invented(1)[0], address), addresses))

    assert answers[503] > 0 < answers[200]


def test_a_site_that_floods_is_refused_and_another_behind_its_address_is_not(folder, superlink, monkeypatch):
    superlink.known = {admit(folder, "bonn")}
    essen = admit(folder, "essen")
    monkeypatch.setattr(gate, "LIMITS", MANY | {"member": (1000, 4)})

    with gate_up(folder), flooded(folder, superlink, [essen] * CALLS, passed=4):
        assert honest(folder) == {"200"}


def test_a_site_that_asks_faster_than_it_may_is_slowed_down_and_never_refused(folder, superlink, monkeypatch):
    superlink.known = {admit(folder, "bonn")}
    monkeypatch.setattr(gate, "LIMITS", MANY | {"member": (10, 100)})

    with gate_up(folder):
        assert honest(folder, calls=25) == {"200"}


def test_a_gate_that_runs_is_told_who_has_been_admitted_and_who_revoked(folder, superlink, monkeypatch):
    monkeypatch.setattr(gate, "LIMITS", MANY | {"stranger": (1, 100)})

    with gate_up(folder):
        key = admit(folder, "bonn")
        superlink.known = {key}
        assert at_once(folder, [key] * CALLS)[503] > 0
        server.tell_gate(folder)
        assert flower_cli.wait_until(lambda: at_once(folder, [key] * CALLS) == {200: CALLS}, 60)
        members.revoke(folder, "bonn")
        server.tell_gate(folder)
        assert flower_cli.wait_until(lambda: at_once(folder, [key] * CALLS)[503] > 0, 60)


def test_a_site_whose_key_the_gate_has_not_is_a_stranger_and_no_error(folder):
    key = admit(folder, "bonn")
    assert key in gate.configuration(members.load(folder), folder)

    (folder / "sites" / "bonn.pub").unlink()

    assert key not in gate.configuration(members.load(folder), folder)


def test_what_is_larger_than_the_gates_buffers_comes_through_both_ways(folder, superlink):
    """Such bodies lie in files on their way, which the user as whom nginx works must be able to write."""
    key = admit(folder, "bonn")
    superlink.known.add(key)
    superlink.seen.clear()
    body = bytes(range(256)) * 4096
    context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.crt"))
    with gate_up(folder):
        record = members.load(folder)
        line = http.client.HTTPSConnection(record.host, record.port, timeout=60, context=context)
        line.request("POST", "/v1/fleet/push-object", body, {FLEET_HTTP_PUBLIC_KEY_HEADER: key})
        answer = line.getresponse()
        told = answer.read()
        line.close()

    assert answer.status == 200
    assert told == body
