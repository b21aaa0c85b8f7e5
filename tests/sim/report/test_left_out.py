"""What a report says of averages that were left out, and where their bytes stand on an axis of traffic."""

import pytest

from fedsmall.methods import method
from fedsmall.privacy.site_level import hands_on
from fedsmall.sim.report.facts import dynamic_sentences, leaves_a_site
from fedsmall.sim.report.figures import _bytes
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import build
from fedsmall.travel.schedule import comm_rounds_of

SCENARIO = {
    "name": "left out",
    "task": "breast_cancer",
    "model_options": {"hidden": [6]},
    "sites": 5,
    "samples_per_site": 8,
    "rounds": 12,
    "evaluate_every": 1,
    "seeds": [0, 1],
    "recipe": {"lr": 0.05},
    "method": [
        {"name": "FedAvg", "aggregate_every": 1},
        {"name": "FedAvg", "label": "dynamic", "aggregate_every": 2, "divergence": 0.02},
    ],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    execute(build(SCENARIO), folder)
    return read(folder)


def test_the_sentence_counts_averages_by_kind_over_all_runs(run):
    rows = [one.row["averages"] for one in run.done if one.label == "dynamic"]

    (sentence,) = dynamic_sentences(run)

    out, some, of_all = (sum(row[kind] for row in rows) for kind in ("left_out", "partial", "whole"))
    assert out > 0
    assert out + some + of_all == 12
    assert f"Of 12 averages in 2 runs {out} were left out, {some} took some models and {of_all} all." in sentence
    assert "further than 0.02 (squared)" in sentence
    assert sentence in leaves_a_site(run)


def test_bytes_up_to_a_round_are_those_that_were_sent_by_then(run):
    for one in run.done:
        sent = [_bytes(one, comm_round.t) for comm_round in comm_rounds_of(one.plan)]
        assert sent == sorted(sent)
        assert sent[-1] == one.row["bytes_sent"]
        if one.label == "dynamic":
            assert sent == one.row["averages"]["bytes_sent"]
            assert len({after - before for before, after in zip([0, *sent], sent, strict=False)}) > 1


def test_a_mean_of_two_hands_a_model_on_to_whom_two_are_too_few():
    plain, dynamic = (method("FedAvg", divergence=bound) for bound in (None, 0.1))

    assert [hands_on(each, 20, 2) for each in (plain, dynamic)] == [False, False]
    assert [hands_on(each, 20, 3) for each in (plain, dynamic)] == [False, True]
