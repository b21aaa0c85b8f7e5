"""Global models that a server crafts, against a site's real program and the policy that comes along."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.app import Message

from fedsmall import clients
from fedsmall.aggregation.sums import SCALE
from fedsmall.audit_log import digest_of
from fedsmall.clients.data_process import DataProcess
from fedsmall.parts import Privacy, Recipe
from fedsmall.privacy.reading import WITHIN
from fedsmall.research.attacks.crafted import (
    distances_to_records,
    read_equal_units,
    read_ladders,
    with_equal_units,
    with_ladders,
)
from fedsmall.sealing.terms import HELP, SEALED
from fedsmall.strategies.records import to_arrays, to_record
from fedsmall.wire import CONFIG, MODEL, Arrays, join, split
from tests.attacks.test_sums import _of
from tests.attacks.world import averages
from tests.clients.test_data_process import AS_IT_IS, NAMES, files, order, plan, scaled
from tests.sim.engines.harness import federation_of
from tests.sim.sealing.federation import Change, Federation, drawn, run

__all__ = ["files"]  # fixtures
WAYS = 8
COMES_ALONG = Path(clients.__file__).with_name("policy.toml").read_text()


class Answered(NamedTuple):
    """What a site got, what it sent (nothing where it refused), its patients as the model sees them, and its log."""

    start: Arrays
    sent: Arrays
    patients: np.ndarray
    events: list[str]


def mlp_plan(hidden: list[int], name: str = "FedAvg", privacy: Privacy | None = None, **recipe: object):
    return plan(name=name, privacy=privacy).model_copy(
        update={"model": "mlp", "model_options": {"hidden": hidden}, "recipe": Recipe(lr=0.05, **recipe)}
    )


def station_of(tmp_path: Path, files: dict[str, Path], policy: str, name: str = "essen") -> DataProcess:
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "policy.toml").write_text(policy)
    return DataProcess(name, files[name], tmp_path / name, tmp_path / "policy.toml")


def asked(station: DataProcess, the_plan, craft, rounds: int = 1) -> list[Answered]:
    """What a station answers to crafted models, which it is told are global ones, round after round."""
    honest, answers = split(scaled(station, the_plan), MODEL), []
    for t in range(1, rounds + 1):
        start = craft(honest, t)
        _, sent = station.answer("train", order(t, the_plan=the_plan), join(**{MODEL: start}))
        events = [entry["event"] for entry in station.log.entries()]
        answers.append(Answered(start, split(sent, MODEL), station._core[1].train.x, events))
    return answers


def ladders(model: Arrays, t: int) -> Arrays:
    return with_ladders(model, WAYS, np.random.default_rng(t))


def read_in_all(answers: list[Answered], within: float = WITHIN) -> int:
    """Patients of a site that stand in any of its answers."""
    near = [distances_to_records(read_ladders(a.start, a.sent, WAYS), a.patients) for a in answers if a.sent]
    return int((np.min(near, axis=0) <= within).sum()) if near else 0


def test_ladders_read_a_third_of_a_hospital_from_one_order_and_most_from_three(tmp_path, files):
    """Without a defence; 142 patients."""
    answers = asked(station_of(tmp_path, files, AS_IT_IS), mlp_plan([512, 8]), ladders, rounds=3)

    assert [len(answer.sent) > 0 for answer in answers] == [True] * 3
    assert read_in_all(answers[:1]) > 142 / 5
    assert read_in_all(answers) > 142 / 2


def test_an_honest_model_holds_nobody_between_its_units(tmp_path, files):
    answers = asked(station_of(tmp_path, files, AS_IT_IS), mlp_plan([512, 8]), lambda model, t: model)

    assert read_in_all(answers, within=0.2) == 0


def test_units_that_are_all_alike_average_blur_away(tmp_path, files):
    blurred = mlp_plan([4096], "FedDC", Privacy(blur=1.0), batch=1)

    answers = asked(station_of(tmp_path, files, AS_IT_IS), blurred, lambda model, t: with_equal_units(model), rounds=4)

    assert all(of_alike(answers) < 0.05)


def of_alike(answers: list[Answered]) -> np.ndarray:
    """How near each answer came to a patient."""
    found = [(read_equal_units(a.start, a.sent)[None], a.patients) for a in answers if a.sent]
    return np.array([distances_to_records(*pair).min() for pair in found])


def test_the_policy_that_comes_along_lets_ladders_read_nobody(tmp_path, files):
    answers = asked(station_of(tmp_path, files, COMES_ALONG), mlp_plan([512, 8]), ladders, rounds=3)

    assert [answer.sent for answer in answers] == [{}] * 3


def test_the_policy_that_comes_along_lets_equal_units_read_nobody(tmp_path, files):
    blurred = mlp_plan([4096], "FedDC", Privacy(blur=1.0), batch=1)
    batches = COMES_ALONG.replace("least_batch = 8", "least_batch = 1")  # which alone would refuse the plan

    answers = asked(station_of(tmp_path, files, batches), blurred, lambda model, t: with_equal_units(model), 4)

    assert [answer.sent for answer in answers] == [{}] * 4


def test_ladders_read_from_a_sum_of_three_hospitals(tmp_path, files):
    """What decryptors would open, to the last digit of a sum; 425 patients."""
    the_plan = mlp_plan([1024, 8])
    of_each = [asked(station_of(tmp_path / name, files, AS_IT_IS, name), the_plan, ladders)[0] for name in NAMES]
    total = {
        name: sum(np.rint(answer.sent[name].astype(np.float64) * SCALE) for answer in of_each) / SCALE / len(of_each)
        for name in of_each[0].sent
    }

    found = read_ladders(of_each[0].start, total, WAYS)
    patients = np.concatenate([answer.patients for answer in of_each])

    assert (distances_to_records(found, patients) <= WITHIN).sum() > len(patients) / 20


def test_ladders_read_from_an_average_of_which_the_server_learns_the_sum_alone(tmp_path, monkeypatch):
    """The whole run: envelopes, masks, decryptors; the first average is honest, the second is of the server's."""
    given: list[Arrays] = []
    the_plan = averages(3, samples_per_site=100, model_options={"hidden": [256, 8]}, recipe={"lr": 0.1})
    federation = Federation(tmp_path, 3, monkeypatch, "check_models = false\n", ladders_for_all(given))

    outcome = run(federation, the_plan)

    patients = np.concatenate([samples.x for samples in federation_of(drawn(federation)).train])
    found = read_ladders(given[0], outcome.model, WAYS)
    assert (distances_to_records(found, patients) <= WITHIN).sum() > len(patients) / 20


def ladders_for_all(given: list[Arrays]) -> Change:
    """A server that gives all sites ladders in the place of the first average, and says so."""

    def change(site: str, order: Message) -> Message:
        if not (_of(order, "train") or _of(order, HELP)):
            return order
        if MODEL in order.content:
            given[:] = given or [ladders(to_arrays(order.content[MODEL]), 1)]
            order.content[MODEL] = to_record(given[0])
        said = json.loads(str(order.content[CONFIG][SEALED]))
        said["average"]["global_models"] = [digest_of(given[0])]
        order.content[CONFIG][SEALED] = json.dumps(said)
        return order

    return change
