"""Messages passed on to the site's data process.

torch, data and model live in the data process (:mod:`fedsmall.clients.data_process`), which alone may read the data.
"""

from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedsmall.clients import socket_frames
from fedsmall.ends import ENDS, Sign, statement_of
from fedsmall.entry_points import HANDLERS, extensions
from fedsmall.frames import FrameError, header_and_block, pieces_of, with_block
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
