"""A site's connection to the SuperLink: the calls of Flower's fleet protocol that its SuperNode makes.

Calls go out over TLS, signed with the site's key, and are repeated until they come through.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedsmall.frames import WHOLE_BYTES

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0
OBJECT_S = 120.0  # how long an object of a message may take to reach the server after the message
AWAY = (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT)
BEAT_S = 12.0  # Flower counts a node as gone after two intervals of 30 s

T = TypeVar("T")


class NotAdmittedError(RuntimeError):
    """The server does not know the site's key now."""


class GoneError(RuntimeError):
    """The run has ended, or its message is gone."""


class Arrival(NamedTuple):
    """A message, whole or without its content, and the tree of the objects that hold that."""

    message: Message
    tree: ObjectTree


class Fleet:
    """The connection to the server at ``address``, of certificate ``authority``, by the private key in ``key``.

    ``note`` keeps Flower's node number: a killed program counts as connected for a minute, and goes on under it.
    """

    def __init__(self, address: str, authority: bytes, key: Path, note: Path) -> None:
        private = load_ssh_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the startup kit's key is none that `fedsmall site keygen` makes")
        self.public = public_key_to_bytes(private.public_key())
        signing = NodeAuthHttpInterceptor(private, private.public_key())
        speaking = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        self.client = FleetHttpClient.from_server_address(address, False, authority, [speaking, signing])
        self.note = note
        self.node = Node()
        self._ends = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def connect(self) -> bool:
        """Activate the site's node; False where it goes on as before. Raises NotAdmittedError."""
        try:
            anew = _call_until_answered(self.activate)
        except httpx.HTTPStatusError as error:
            raise NotAdmittedError(f"HTTP {error.response.status_code}") from None
        if not self._beating.is_alive():
            self._beating.start()
        return anew

    def activate(self) -> bool:
        """Ask once to be let in; False where the node was still connected. Raises httpx's errors."""
        try:
            order = ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            self.node = Node(node_id=self.client.ActivateNode(order).node_id)
        except httpx.HTTPStatusError:
            before = Node(node_id=int(self.note.read_text())) if self.note.exists() else None
            if before is None or not self._alive(before):
                raise
            self.node = before
            return False
        self.note.write_text(str(self.node.node_id))
        return True

    def release(self) -> None:
        """Tell the server that the site is gone."""
        self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))

    def close(self) -> None:
        """Let go of the node and of the connection."""
        self._ends.set()
        with suppress(httpx.HTTPError, RuntimeError):
            self.release()
            self.note.unlink(missing_ok=True)
        self.client.close()

    def pull(self) -> Arrival | None:
        """The next message for this site, or None."""
        response = self._call(lambda: self.client.PullMessages(PullMessagesRequest(node=self.node)))
        if not response.messages_list:
            return None
        return Arrival(message_from_proto(response.messages_list[0]), response.message_object_trees[0])

    def pull_object(self, run: int, name: str) -> bytes:
        """The content of an object, once it is at the server. Raises GoneError where it never comes."""
        deadline, wait = time.monotonic() + OBJECT_S, 0.01
        request = PullObjectRequest(node=self.node, run_id=run, object_id=name)
        while True:
            response = self._call(lambda: self.client.PullObject(request))
            if response.object_available:
                return bytes(response.object_content)
            if not response.object_found or time.monotonic() > deadline:
                raise GoneError("an object of the message is not there")
            time.sleep(wait)
            wait = min(2 * wait, 0.5)

    def confirm(self, arrival: Arrival) -> None:
        """Confirm that all of a message is here."""
        about = arrival.message.metadata
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=about.run_id, message_object_id=about.message_id)
        self._call(lambda: self.client.ConfirmMessageReceived(request))

    def push(self, reply: Message, seconds: float, again: bool = False, whole: bool = False) -> None:
        """Send an answer: in one call where it is small and its order came ``whole``, else as the pieces asked for.

        ``again``: a killed program may have sent a part; a server that showed an answer takes the rest without asking.
        """
        pieces = [reply] if reply.has_error() else [reply.content[key] for key in sorted(reply.content)]
        with no_object_id_recompute():
            objects = {piece.object_id: piece for piece in pieces}
        first, *others = (ObjectTree(object_id=name) for name in objects)
        first.children.extend(others)
        reply.metadata.__dict__["_message_id"] = first.object_id
        whole = whole or reply.has_error()
        sent = message_to_proto(reply if whole else remove_content_from_message(reply))
        if sent.ByteSize() > WHOLE_BYTES:
            sent, whole = message_to_proto(remove_content_from_message(reply)), False
        request = PushMessagesRequest(
            node=self.node, messages_list=[sent], message_object_trees=[first], clientapp_runtime_list=[seconds]
        )
        asked = self._call(lambda: self.client.PushMessages(request))
        for name in [name for name in objects if not whole and (again or name in asked.objects_to_push)]:
            part = PushObjectRequest(
                node=self.node,
                run_id=reply.metadata.run_id,
                object_id=name,
                object_content=objects[name].deflate(),
                session_id=asked.session_id if name in asked.objects_to_push else "",
            )
            self._call(lambda part=part: self.client.PushObject(part))  # type: ignore[misc]

    def bundle(self, run: int) -> bytes:
        """The bundle that a run was started with."""
        about = self._call(lambda: self.client.GetRun(GetRunRequest(node=self.node, run_id=run))).run
        request = GetFabRequest(node=self.node, hash_str=about.fab_hash, run_id=run)
        return bytes(self._call(lambda: self.client.GetFab(request)).fab.content)

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return _call_until_answered(call)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise NotAdmittedError(f"HTTP {error.response.status_code}") from None
            raise GoneError(f"HTTP {error.response.status_code}") from None

    def _alive(self, node: Node) -> bool:
        beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            return bool(self.client.SendNodeHeartbeat(beat).success)
        except (httpx.HTTPError, ValueError):
            return False

    def _beat(self) -> None:
        while not self._ends.wait(BEAT_S):
            self._alive(self.node)


def _call_until_answered(call: Callable[[], T]) -> T:
    wait = FIRST_WAIT_S
    while True:
        try:
            return call()
        except httpx.TransportError:
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in AWAY:
                raise
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_S)
