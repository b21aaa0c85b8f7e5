"""The ClientApp of a real site: hands each message to the site's station, and imports next to nothing.

Flower starts a fresh process for every message. All that takes time to load (torch, the data, the model) lives in the
station (:mod:`clients.station`), which is also the only one that can read the data: this program needs no right to.
"""

import os
import socket
import time
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients import socket_frames
from clients.records import arrays_of, records_of
from fedsmall.wire import CONFIG, METRICS, VALIDATE, Arrays

SOCKET = "FEDSMALL_STATION"  # where the station listens; set by `fedsmall site up`
STATION_START_S = 90.0  # a station that was restarted loads torch and the data first
REFUSED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """The roll call."""
    return relay("roll", message)


@app.query("sums")
def sums(message: Message, context: Context) -> Message:
    """What the site tells of its features, so that all sites scale theirs alike."""
    return relay("sums", message)


@app.query("classes")
def classes(message: Message, context: Context) -> Message:
    """What this site tells of the classes of its samples."""
    return relay("classes", message)


@app.query("scaling")
def scaling(message: Message, context: Context) -> Message:
    """The scaling that all sites agreed on."""
    return relay("scaling", message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the traveller that came."""
    return relay("train", message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Judge the model that came on what the site has held out."""
    return relay("evaluate", message)


@app.evaluate(VALIDATE)
def validate(message: Message, context: Context) -> Message:
    """Judge the models that came, which never saw this site, on the samples that it trains on."""
    return relay(VALIDATE, message)


def relay(kind: str, message: Message) -> Message:
    """Pass a message on to the station and bring back its answer; an error is one line that the station wrote."""
    config = message.content.config_records.get(CONFIG, ConfigRecord())
    header = {"kind": kind, "config": {key: value for key, value in config.items() if not isinstance(value, bytes)}}
    try:
        answer, arrays = _ask(header, arrays_of(message.content))
    except OSError as error:
        answer, arrays = {"error": f"the site's station cannot be reached ({type(error).__name__})"}, {}
    if "error" in answer:
        return Message(Error(code=REFUSED, reason=str(answer["error"])), reply_to=message)
    return Message(_content(answer, arrays), reply_to=message)


def _ask(header: socket_frames.Header, arrays: Arrays) -> tuple[socket_frames.Header, Arrays]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, os.environ[SOCKET])
        socket_frames.send(connection, header, arrays)
        return socket_frames.receive(connection)


def _connect(connection: socket.socket, path: str) -> None:
    deadline = time.monotonic() + STATION_START_S
    while True:
        try:
            return connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _content(answer: socket_frames.Header, arrays: Arrays) -> RecordDict:
    order = answer.get("order", sorted(arrays))  # safetensors keeps no order; a model's arrays have one
    records: dict[str, Any] = dict(records_of({name: arrays[name] for name in order}))
    if "config" in answer:
        records[CONFIG] = ConfigRecord(answer["config"])
    if "metrics" in answer:
        records[METRICS] = MetricRecord(answer["metrics"])
    return RecordDict(records)
