"""Seconds per contact of three real sites on one machine: Flower's floor, the warm station, and the same work cold.

Three bundles run over the same consortium. ``echo`` imports nothing and sends back what came, a model of the same size
as the others': what Flower itself costs. ``warm`` is fedsmall's own. ``cold`` loads torch, the data and the model in
Flower's fresh process for every message.

    python -m examples.measure_contacts [CONTACTS]
"""

import json
import os
import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from examples.loopback import LoopbackConsortium
from fedsmall.audit_log import AuditLog
from sim.consortium import runs, sample_data
from sim.consortium.bundles import SOURCE, own_digest
from sim.runs import scenario

SITES = ("bonn", "essen", "ulm")

ECHO_CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()

@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""

ECHO_SERVER = """
import os
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from fedsmall.run_sheet import RunSheet
from fedsmall.audit_log import AuditLog
from strategies.server.deployment import wait_for_sites
from strategies.server.retrying_grid import RetryingGrid
app = ServerApp()

@app.main()
def main(grid, context):
    folder = Path(os.environ["FEDSMALL_RUNS"]) / context.run_config["run"]
    sheet = RunSheet.model_validate_json((folder / "sheet.json").read_text())
    patient = RetryingGrid(grid, sheet, AuditLog(folder / "log.jsonl"))
    wait_for_sites(sheet, patient)
    shapes = {"0.weight": (16, 30), "0.bias": (16,), "2.weight": (2, 16), "2.bias": (2,)}
    model = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in shapes.items()})
    for t in range(1, sheet.plan.rounds + 1):
        content = RecordDict({"arrays": model, "config": ConfigRecord({"round": t})})
        nodes = [n.node_id for n in patient.get_nodes()]
        list(patient.send_and_receive([Message(content, node, "train") for node in nodes]))
    (folder / "outcome.json").write_text('{"events": []}')
"""

COLD_CLIENT = """
import os
from pathlib import Path
from clients import relay
app = relay.app

def ask(words, arrays):
    from clients.station import Station
    home = Path(os.environ["FEDSMALL_STATION"]).parent.parent
    data = Path(os.environ["MEASURE_DATA"]) / f"{home.parent.name}.csv"
    return Station(home.parent.name, data, home, home.parent / "policy.toml").answer(
        words["kind"], words["config"], arrays)

relay._ask = ask
"""


def bundle(folder: Path, client: str, server: str) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text((SOURCE / "pyproject.toml").read_text())
    (folder / "bundle_client.py").write_text(client)
    (folder / "bundle_server.py").write_text(server)
    return folder


def seconds_per_contact(home: Path) -> list[float]:
    """From the first order of a contact to its last answer, for every training contact of a run but the first."""
    orders: dict[int, datetime] = {}
    answers: dict[int, datetime] = {}
    for entry in AuditLog(home / "log.jsonl").entries():
        time, t = datetime.fromisoformat(entry["time"]), entry.get("t")
        if entry.get("kind") == "train" and entry["event"] == "order":
            orders.setdefault(t, time)
        elif entry.get("kind") == "train" and entry["event"] == "answer":
            answers[t] = time
    return [(answers[t] - orders[t]).total_seconds() for t in sorted(orders)[1:]]


def main(contacts: int) -> None:
    path = Path(__file__).parent.parent / "scenarios" / "consortium_demo.toml"
    settings = [f"rounds={contacts}", "method.0.permute_every=1", "evaluate_every=1000"]
    plan = scenario.load(path, settings).plans()[0]
    with tempfile.TemporaryDirectory(prefix="fm") as scratch:
        folder = Path(scratch)
        data = {name: folder / f"{name}.csv" for name in SITES}
        sample_data.write(list(data.values()))
        os.environ["MEASURE_DATA"] = scratch
        own_server = (SOURCE / "bundle_server.py").read_text()
        bundles = {
            "echo": bundle(folder / "echo", ECHO_CLIENT, ECHO_SERVER),
            "warm": SOURCE,
            "cold": bundle(folder / "cold", COLD_CLIENT, own_server),
        }
        digests = ", ".join(f'"{own_digest(source)}"' for source in bundles.values())
        with LoopbackConsortium(folder, data, f"bundles = [{digests}]\n", say=print) as loopback:
            for name, source in bundles.items():
                runs.SOURCE = source
                loopback.finish(name, loopback.start(name, plan))
                taken = seconds_per_contact(loopback.home(name))
                row = {"median": statistics.median(taken), "all": [round(value, 2) for value in taken]}
                print(name, json.dumps(row), "load", os.getloadavg()[0], flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
