"""The site's program on the network: it takes orders, passes them to the data process and sends its answers.

It replaces Flower's SuperNode, SuperExec and ClientApp processes and speaks the SuperNode's protocol
(:mod:`fedsmall.clients.fleet`). It opens no port and runs no code of the server: a run's bundle is read once, for its
digest, and orders of an app that the policy does not approve never reach the data process.
"""

import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError

from fedsmall.clients.bundles import check_bundle
from fedsmall.clients.fleet import FIRST_WAIT_S, LONGEST_WAIT_S, Arrival, Fleet, GoneError, NotAdmittedError
from fedsmall.clients.relay import KILLED, answer_of, refusal
from fedsmall.ends import Sign, signer
from fedsmall.errors import PolicyError
from fedsmall.files import one_line, write
from fedsmall.frames import MOST_ARRAYS_BYTES, FrameError, join_pieces, pieces_in

SHORTEST_S, LONGEST_S = 0.08, 3.0  # between two questions to the server, which costs it 5 ms to answer
PATIENCE = 20  # a question comes after a twentieth of the time for which there was nothing to do,
REGULAR_S = 4 / 3  # but the first after 3/4 of how long the last order let wait, or of this, and others by twelfths
MOST_RUNS = 1000
AWAY_S = 3.0  # longer than the server's slowest look for answers: within it, it sees that a site is away
GIVEN = "given"  # beside the order in hand: its answer, from before it is sent until all of it has arrived


def pause_s(idle: float, waited: float) -> float:
    """Seconds until the next question, after ``idle`` ones without work; the last order came after ``waited`` ones."""
    regular = min(waited, REGULAR_S)
    return min(max(idle / PATIENCE, SHORTEST_S, 0.75 * regular - idle, regular / 12), LONGEST_S)


@dataclass
class SiteAgent:
    """One site's program: ``fleet`` is its line to the server, ``data_process`` the path of the data process's socket.

    ``approved`` are digests of bundles, separated by commas. The order in hand is written to ``taken``, and its answer
    before it is sent: after a kill the program says so and is sent the order again, or sends the rest of its answer.
    """

    fleet: Fleet
    data_process: str
    approved: str
    taken: Path
    sign: Sign | None = None  # with the site's key, where its log stands
    runs: dict[int, str] = field(default_factory=dict)  # looked at; with the reason where the app is not approved

    def serve(self) -> None:
        """Answer orders for ever."""
        since, waited = time.monotonic(), 0.0
        while True:
            try:
                asked = time.monotonic()
                if self.work():
                    since, waited = time.monotonic(), asked - since
            except NotAdmittedError as error:
                print(f"the server does not know this site now ({error}); dialling again", flush=True)
                self.connect()
                since = time.monotonic()
            time.sleep(pause_s(time.monotonic() - since, waited))

    def connect(self) -> None:
        """Connect, however long it takes; then answer the order that was in hand when this program was killed."""
        message, given = read_message(self.taken), read_message(self._given)
        if not self._let_in() and message is None:
            self.fleet.release()  # an order that was on its way here may be lost: who is seen away is sent it again
            time.sleep(AWAY_S)
            self._let_in()
        print(f"connected as node {self.fleet.node.node_id}", flush=True)
        if message is not None:
            if given is None or given.metadata.reply_to_message_id != message.metadata.message_id:
                given = refusal(message, "its program was killed", KILLED)
            self._settle(message, lambda: given, again=True)

    def _let_in(self) -> bool:
        """Dial until admitted; False where the server had counted the site as connected all the while."""
        wait = FIRST_WAIT_S
        while True:
            try:
                return self.fleet.connect()
            except NotAdmittedError as error:
                print(f"not let in ({error}); again in {wait:.0f} s", flush=True)
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    @property
    def _given(self) -> Path:
        return self.taken.with_name(GIVEN)

    def work(self) -> bool:
        """Take and answer one order; False where there is none."""
        arrival = self.fleet.pull()
        if arrival is None:
            return False
        write_message(self.taken, arrival.message)
        self._settle(arrival.message, lambda: self._answer(arrival))
        return True

    def _settle(self, message: Message, answer: Callable[[], Message], again: bool = False) -> None:
        begun = time.monotonic()
        TaskIdentity.task_id, TaskIdentity.run_id = 1, message.metadata.run_id
        TaskIdentity.node_id = self.fleet.node.node_id
        try:
            reply = answer()
            write_message(self._given, reply)
            self.fleet.push(reply, time.monotonic() - begun, again, whole=bool(message.content))
        except GoneError as error:
            print(f"an order was dropped: its run has ended ({error})", flush=True)
        except NotAdmittedError:
            self._let_go()  # whoever sent it is not there any more
            raise
        self._let_go()

    def _let_go(self) -> None:
        self.taken.unlink(missing_ok=True)  # first: an answer whose order is not there is never sent
        self._given.unlink(missing_ok=True)

    def _answer(self, arrival: Arrival) -> Message:
        message, run = arrival.message, arrival.message.metadata.run_id
        try:
            frame = self._content(arrival)
            reason = self._refused(run)
            return refusal(message, reason) if reason else answer_of(message, frame, self.data_process, self.sign)
        except FrameError as error:
            return refusal(message, f"the order cannot be read: {error}")
        except (GoneError, NotAdmittedError):
            raise
        except Exception:
            traceback.print_exc()  # to this program's own log, which stays here
            return refusal(message, "the site's program failed; its own log says how")

    def _content(self, arrival: Arrival) -> bytes:
        if whole := arrival.message.content.config_records:
            return join_pieces(whole.values())
        size, pieces = 0, []
        for name in pieces_in(arrival.tree):
            content = self.fleet.pull_object(arrival.message.metadata.run_id, name)
            size += len(content)
            if size > MOST_ARRAYS_BYTES:
                raise FrameError("it is larger than is taken")
            try:
                pieces.append(ConfigRecord.inflate(content))
            except Exception:  # whatever Flower raises over bytes that another made
                raise FrameError("an object of it is no piece") from None
        frame = join_pieces(pieces)
        self.fleet.confirm(arrival)
        return frame

    def _refused(self, run: int) -> str:
        if run not in self.runs:
            if len(self.runs) >= MOST_RUNS:
                self.runs.clear()
            try:
                check_bundle(self.fleet.bundle(run), self.approved)
                self.runs[run] = ""
            except PolicyError as error:
                self.runs[run] = one_line(error)
        return self.runs[run]


def write_message(path: Path, message: Message) -> None:
    """Write a message down, readable by its user alone."""
    write(path, message_to_proto(message).SerializeToString(), mode=0o600)


def read_message(path: Path) -> Message | None:
    """The message that was written down; None where there is none, or none that can be read (after a power cut)."""
    with suppress(OSError, DecodeError, ValueError, LookupError):
        return message_from_proto(ProtoMessage.FromString(path.read_bytes()))
    return None


def main(arguments: list[str]) -> None:
    """``-m fedsmall.clients.site_agent ADDRESS CA KEY SOCKET HOME DIGESTS``, as `fedsmall site up` runs it."""
    address, authority, key, data_process, home, approved = arguments
    fleet = Fleet(address, Path(authority).read_bytes(), Path(key), Path(home) / "node")
    agent = SiteAgent(fleet, data_process, approved, Path(home) / "taken", signer(Path(key)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with closing(fleet), suppress(KeyboardInterrupt):
        agent.connect()
        agent.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
