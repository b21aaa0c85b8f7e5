"""The attacks beside the table of accuracy against a patient's epsilon: one small set, and what is kept."""

import pytest

from examples import patient_attacks, patient_privacy
from examples.patient_attacks import ATTACKED, PARTIES, Attack, attack, table
from examples.patient_privacy import EPSILONS, METHODS, SETS, Cell
from fedsmall.research.evidence.items import DOCS
from fedsmall.sim.runs.files import read_json


@pytest.mark.thorough
def test_every_method_is_attacked_at_every_epsilon(monkeypatch):
    small = {"task": "breast_cancer", "model_options": {"hidden": [4]}, "rounds": 3, "sites": 4, "samples_per_site": 3}
    monkeypatch.setitem(SETS, "small", small | {"lot": 3})
    monkeypatch.setitem(patient_attacks.RUNS, "small", 8)
    cells = [Cell("small", m, e, 0.1, False, [0.5], [0.5], e) for m in METHODS for e in EPSILONS]

    found = attack("small", cells)

    # another hospital is sent single models under FedDC, and global ones under all
    assert {(each.method, each.epsilon) for each in found} == {(m, e) for m in METHODS for e in EPSILONS}
    assert {each.party for each in found} == set(PARTIES)
    assert all(0 <= each.low <= each.auc <= each.high <= 1 for each in found)
    assert table(found).count("\n") == 1 + len({(each.data, each.method, each.party) for each in found})


def test_nobody_reads_a_record_of_patients_who_were_promised_an_epsilon():
    kept = [Attack(**each) for each in read_json(ATTACKED)]

    assert all(not each.read for each in kept if each.epsilon is not None)
    assert any(each.read for each in kept if each.epsilon is None and each.party == "server")


def test_the_pages_hold_the_tables_of_what_is_kept():
    attacks = table([Attack(**each) for each in read_json(ATTACKED)])
    accuracy = patient_privacy.table([Cell(**cell) for cell in read_json(patient_privacy.KEPT)])

    assert attacks in (DOCS / "reading.md").read_text()
    assert accuracy in (DOCS / "privacy.md").read_text()
