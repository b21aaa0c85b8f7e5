"""Who sees models on their way: one server, several, or none."""

import pytest

from fedsmall.sim.report.facts import leaves_a_site
from fedsmall.sim.report.sentences import amount
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build

GOSSIP = {"name": "FedDC", "label": "by gossip", "aggregate_every": 2, "topology": "gossip"}
REGIONS = {"name": "FedDC", "label": "in regions", "aggregate_every": 2, "regions": {"number": 2, "average_every": 2}}
SERVER = {"name": "FedAvg", "aggregate_every": 2}


def said_of(folder, *methods):
    table = {
        "name": "served",
        "task": "breast_cancer",
        "model_options": {"hidden": [4]},
        "sites": 4,
        "samples_per_site": 8,
        "rounds": 4,
        "method": list(methods),
    }
    run = execute(build(table), folder / "r")
    return run, leaves_a_site(run)[-1]


def test_one_server_sees_each_model(tmp_path):
    assert said_of(tmp_path, SERVER)[1].endswith("The server sees what each site sends.")


def test_where_there_is_no_server_none_is_said_to_see_models(tmp_path):
    told = said_of(tmp_path, GOSSIP)[1]

    assert told.endswith("Under by gossip there is no server: the site that a model is sent to sees it.")
    assert "The server" not in told


@pytest.mark.parametrize("beside", [(), (SERVER,)])
def test_servers_of_regions_see_their_own_and_what_they_send_each_other_is_told(tmp_path, beside):
    run, told = said_of(tmp_path, REGIONS, *beside)

    assert run.done[0].row["bytes_between"] > 0
    assert f"Between servers went {amount(run.done[0].row['bytes_between'])} a run." in told
    assert ("The server sees what each site sends under the other methods." in told) is bool(beside)


def test_of_an_ensemble_one_model_is_sent_in_a_round(tmp_path):
    routes = {"name": "FedDC", "permute_every": 1, "aggregate_every": 2, "validate": {"routes": 2}}

    alone, several = (leaves_a_site(said_of(tmp_path / name, of)[0])[0] for name, of in (("a", SERVER), ("b", routes)))

    sent = 30 * 4 + 4 + 4 * 2 + 2
    assert f"its trained model ({sent} numbers, {4 * sent} B)" in alone
    assert f"its trained model ({sent} numbers, {4 * sent} B)" in several
