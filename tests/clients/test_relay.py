"""The relay hands a message to the station and brings back its answer; it imports no torch. A bundle is known first."""

import io
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedsmall.clients import bundles, relay, socket_frames
from fedsmall.errors import PolicyError
from fedsmall.frames import from_frame, join_pieces, pieces_of, to_frame
from fedsmall.sim.consortium.flower_cli import own_digest
from fedsmall.sim.engines.inprocess import act_as_server
from fedsmall.strategies.server import grid as run_grid
from fedsmall.wire import CONFIG


@pytest.fixture
def station(tmp_path):
    """A station that answers with whatever the test gives it, and keeps what it was asked."""
    asked, answers = [], []
    path = tmp_path / "door" / "s"
    listening = socket_frames.listen(path)

    def attend():
        while True:
            try:
                caller, _ = listening.accept()
            except OSError:
                return
            with caller:
                asked.append(socket_frames.receive(caller))
                socket_frames.send(caller, *answers.pop(0))

    thread = threading.Thread(target=attend, daemon=True)
    thread.start()
    yield asked, answers
    listening.close()


def order(kind="train"):
    act_as_server()
    model = {"arrays/b": np.array([1.0, 2.0], np.float32), "arrays/a": np.array(3, np.int64)}
    frame = to_frame({CONFIG: {"round": 2, "common": True}}, model)
    return Message(RecordDict({"frame-0": ConfigRecord(pieces_of(frame)[0])}), 5, kind)


def relayed(message, folder):
    """The answer of the station in a folder."""
    frame = join_pieces(message.content.config_records.values())
    return relay.answer_of(message, frame, str(folder / "door" / "s"))


def test_a_message_goes_to_the_station_and_its_answer_comes_back_in_order(station, tmp_path):
    asked, answers = station
    sent = {"arrays/b": np.array([4.0, 5.0], np.float32), "arrays/a": np.array(6, np.int64)}
    answers.append(({"metrics": {"num-examples": 9}, "order": ["arrays/b", "arrays/a"]}, sent))

    reply = relayed(order(), tmp_path)

    words, arrays = asked[0]
    assert words == {"kind": "train", "config": {"round": 2, "common": True}}
    assert arrays["arrays/b"].tolist() == [1.0, 2.0]
    told, came = from_frame(join_pieces(reply.content.config_records.values()))
    assert told == {"metrics": {"num-examples": 9}, "order": ["arrays/b", "arrays/a"]}
    assert {name: array.tobytes() for name, array in came.items()} == {n: a.tobytes() for n, a in sent.items()}
    assert came["arrays/a"].shape == ()


def test_a_refusal_becomes_an_error_of_one_line(station, tmp_path):
    station[1].append(({"error": "essen: no"}, {}))

    reply = relayed(order(), tmp_path)

    assert reply.has_error()
    assert reply.error.reason == "essen: no"


def test_an_order_of_no_kind_that_is_known_never_reaches_the_station(station, tmp_path):
    asked, _ = station

    assert "does not know" in relayed(order("train.replica"), tmp_path).error.reason
    assert not asked


def test_a_station_that_is_not_there_is_said_so_without_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(socket_frames.ask, "__defaults__", (0.1,))

    reply = relayed(order(), tmp_path)

    assert "the site's data process does not answer (No such file" in reply.error.reason
    assert str(tmp_path) not in reply.error.reason


@pytest.mark.parametrize("said", [b"", b"\0" * 5])
def test_a_station_that_ends_before_it_has_answered_is_sent_the_order_again(tmp_path, said):
    path = tmp_path / "door" / "s"
    listening = socket_frames.listen(path)

    def killed():
        line, _ = listening.accept()
        line.sendall(said)
        line.close()  # with the order unread: the system resets the connection

    thread = threading.Thread(target=killed)
    thread.start()
    reply = relayed(order(), tmp_path)
    thread.join()
    listening.close()

    assert reply.error.code == relay.KILLED
    assert reply.error.code in run_grid.LOST


@pytest.mark.thorough
def test_the_relay_imports_nothing_heavy():
    code = (
        "import sys, flwr.supernode.cli.flwr_clientapp; before = set(sys.modules);"
        "import fedsmall.clients.relay, fedsmall.clients.bundles;"
        "heavy = {'torch', 'pydantic', 'sklearn', 'pandas', 'scipy', 'ray', 'flwr.serverapp'};"
        "heavy &= set(sys.modules) - before; print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip().splitlines()[-1] == "[]"


def bundle(files, compression=zipfile.ZIP_DEFLATED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        for name, text in files:
            file.writestr(name, text)
    return content.getvalue()


def test_a_bundles_digest_is_of_its_contents_alone():
    files = [("a.py", "one"), ("b.py", "two")]

    digests = {
        bundles.bundle_digest(bundle(files)),
        bundles.bundle_digest(bundle(files[::-1], zipfile.ZIP_STORED)),
    }
    others = [[("a.py", "one"), ("b.py", "twö")], [("a.py", "one")], [("a.py", "one"), ("c.py", "two")]]

    assert len(digests) == 1
    assert len({*digests, *(bundles.bundle_digest(bundle(other)) for other in others)}) == 4


def test_only_an_approved_bundle_is_let_in():
    good, bad = bundle([("a.py", "one")]), bundle([("a.py", "import os")])
    approved = f"{own_digest()},{bundles.bundle_digest(good)}"

    bundles.check_bundle(good, approved)
    with pytest.raises(PolicyError, match="no code of it was loaded"):
        bundles.check_bundle(bad, approved)
    with pytest.raises(PolicyError, match="no zip file"):
        bundles.check_bundle(b"nonsense", approved)
    with pytest.raises(PolicyError, match="not among those approved"):
        bundles.check_bundle(good, "")


APP = '[project]\nname = "other-app"\nversion = "1.2"\n[tool.flwr.app]\npublisher = "some\\nbody"\n'


@pytest.mark.parametrize(
    ("pyproject", "name"),
    [
        (APP, r"the app some\?body/other-app 1\.2 \(bundle"),
        ("[project]", "the app without a name"),
        ("nonsense", "the app without a name"),
        ("publisher = 3\nproject = 4\ntool = 5", "the app without a name"),
    ],
)
def test_a_bundle_that_is_refused_is_named(pyproject, name):
    with pytest.raises(PolicyError, match=name) as refused:
        bundles.check_bundle(bundle([("pyproject.toml", pyproject)]), "")

    assert "\n" not in str(refused.value)


def test_a_damaged_bundle_is_refused_in_one_line():
    whole = bundle([("pyproject.toml", APP), ("a.py", "one" * 100)])
    for place in range(len(whole)):
        for value in (0, 255):
            content = whole[:place] + bytes([value]) + whole[place + 1 :]

            with pytest.raises(PolicyError, match="no code of it was loaded"):
                bundles.check_bundle(content, "")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bundle_that_names_a_file_twice_is_refused():
    with pytest.raises(PolicyError, match="twice"):
        bundles.bundle_digest(bundle([("a.py", "one"), ("a.py", "two")]))
