"""What parties say to each other: words and arrays, as bytes that anybody could carry, and nothing that runs."""

import json
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import load, save

from fedsmall.errors import ReplyError

Arrays = dict[str, np.ndarray]
WORDS = "words"


@dataclass(frozen=True)
class Message:
    """One thing that one party says to another."""

    sender: str
    to: str
    kind: str
    words: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def answer(self, words: Mapping[str, Any] | None = None, arrays: Arrays | None = None) -> "Message":
        """The reply to this message."""
        return Message(self.to, self.sender, self.kind, words or {}, arrays or {})

    def to_bytes(self) -> bytes:
        """The message as bytes: JSON and arrays, never pickled."""
        head = json.dumps([self.sender, self.to, self.kind, self.words]).encode()
        written = {WORDS: np.frombuffer(head, np.uint8)}
        written |= {f"array/{name}": np.ascontiguousarray(array) for name, array in self.arrays.items()}
        return save(written)

    def as_array(self) -> np.ndarray:
        """The message as bytes, for a place in another."""
        return np.frombuffer(self.to_bytes(), np.uint8)

    @staticmethod
    def from_bytes(content: bytes) -> "Message":
        """The message that ``content`` holds; ReplyError for what is none."""
        try:
            arrays = load(content)
            sender, to, kind, words = json.loads(arrays.pop(WORDS).tobytes())
        except Exception as error:  # safetensors has errors of its own, which are no ValueErrors
            raise ReplyError("this is no message of a party") from error
        return Message(sender, to, kind, words, {name.removeprefix("array/"): array for name, array in arrays.items()})


Result = TypeVar("Result")
# Asks several parties at a time, and is told their replies.
Talk = Generator[Sequence[Message], Sequence[Message], Result]
Carrier = Callable[[Sequence[Message]], Sequence[Message]]


def hold_talk(talk: Talk[Result], carry: Carrier) -> Result:
    """Hold a talk over whatever carries messages, to its end."""
    replies: Sequence[Message] | None = None
    while True:
        try:
            replies = carry(talk.send(replies))  # type: ignore[arg-type]  # the first is None, as generators want it
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@dataclass
class Post:
    """Carries messages between parties in one process as bytes, counts them, and may keep them in ``heard``."""

    parties: Mapping[str, Any]  # by name, who answers messages
    keep: bool = False
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)  # by sender and receiver
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    heard: dict[str, list[Message]] = field(default_factory=dict)

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        """Every party's reply, in the order of the messages."""
        replies = [self.parties[message.to].answer(self._deliver(message)) for message in messages]
        return [self._deliver(reply) for reply in replies]

    def _deliver(self, message: Message) -> Message:
        content = message.to_bytes()
        way = (message.sender, message.to)
        self.messages[way] += 1
        self.bytes[way] += len(content)
        received = Message.from_bytes(content)
        if self.keep:
            self.heard.setdefault(message.to, []).append(received)
        return received
