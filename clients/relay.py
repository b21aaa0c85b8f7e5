"""Messages passed on to the site's data process, and the ClientApp of Flower's classic programs, which does only that.

torch, data and model live in the data process (:mod:`fedsmall.clients.data_process`), which alone may read the data.
"""

import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsmall.clients import socket_frames
from fedsmall.clients.socket_frames import KEY, SOCKET
from fedsmall.ends import ENDS, Sign, signer, statement_of
from fedsmall.entry_points import HANDLERS, extensions
from fedsmall.frames import FrameError, header_and_block, join_pieces, pieces_of, with_block
from fedsmall.sealing.terms import BEFORE, HELP, PAIRS, READDRESS
from fedsmall.wire import BALANCE, CONFIG, REFUSED, VALIDATE

KILLED = 8  # Flower's ErrorCode for a ClientApp that was killed: the server sends the order again

# What a data process is asked, by the type of Flower's message.
KINDS = {
    "query": "roll",
    "train": "train",
    "evaluate": "evaluate",
    f"evaluate.{VALIDATE}": VALIDATE,
    **{f"query.{kind}": kind for kind in ("scaling", HELP, READDRESS, BEFORE, PAIRS, BALANCE, *extensions(HANDLERS))},
}

app = ClientApp()


def relay(message: Message, context: Context | None = None) -> Message:
    """The data process's answer to a message; an error is one line that the data process wrote."""
    try:
        frame = join_pieces(message.content.config_records.values())
    except FrameError as error:
        return refusal(message, f"the order cannot be read: {error}")
    sign = signer(Path(os.environ[KEY])) if KEY in os.environ else None
    return answer_of(message, frame, os.environ[SOCKET], sign)


for kind in KINDS:
    method, _, action = kind.partition(".")
    getattr(app, method)(*[action] if action else ())(relay)


def answer_of(message: Message, frame: bytes, path: str, sign: Sign | None = None) -> Message:
    """The answer of the data process at ``path`` to a message in ``frame``, its log statement signed."""
    kind = KINDS.get(message.metadata.message_type)
    if kind is None:
        return refusal(message, "this site was asked for something that it does not know")
    try:
        header, block = header_and_block(frame)
        answer = socket_frames.ask(path, with_block({"kind": kind, CONFIG: header.get(CONFIG, {})}, block))
        reply, block = header_and_block(answer)
    except FrameError as error:
        return refusal(message, f"the order cannot be read: {error}")
    except socket_frames.LineError as error:
        return refusal(message, f"the site's data process ended before it had answered: {error}", KILLED)
    except OSError as error:
        return refusal(message, f"the site's data process does not answer ({error.strerror})")
    if "error" in reply:
        return refusal(message, str(reply["error"]), int(reply.get("code", REFUSED)))
    if sign is not None and (statement := statement_of(reply.get(ENDS))):
        answer = with_block({**reply, ENDS: statement.signed(sign).model_dump()}, block)
    records = {f"frame-{n}": ConfigRecord(piece) for n, piece in enumerate(pieces_of(answer))}
    return Message(RecordDict(dict(records)), reply_to=message)


def refusal(message: Message, reason: str, code: int = REFUSED) -> Message:
    """An answer of one line."""
    return Message(Error(code=code, reason=reason), reply_to=message)
