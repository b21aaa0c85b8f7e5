"""What leaves a site: under privacy only its model depends on a patient, and no patient can be read from that."""

import csv
import json
from hashlib import blake2b

import numpy as np
import pytest

from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.policy import policy_from
from fedsmall.clients.self_check import blur_update, left_by_decay, patients_read
from fedsmall.errors import PolicyError
from fedsmall.parts import Privacy, Recipe
from fedsmall.planning.run_sheet import SUMS, TELL
from fedsmall.sealing.tables import MEETING
from fedsmall.wire import join
from tests.clients.test_data_process import config, files, order, plan, refused, same, scaled, station

__all__ = ["files", "station"]  # fixtures
DEFAULT = "least_batch = 1\n"
COUNTED = Privacy(clip=1.0, noise=2.0)


def other_patient(path):
    """The same hospital with another patient in the place of its last one, of the same diagnosis."""
    rows = list(csv.reader(path.read_text().splitlines()))
    rows[-1][:-1] = [str(float(value) * 1.1) for value in rows[-1][:-1]]
    other = path.with_name("other.csv")
    with other.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return other


def mlp(the_plan, **recipe):
    return the_plan.model_copy(update={"model": "mlp", "recipe": Recipe(**{"lr": 0.05, **recipe})})


def twins(station, files):
    """The station, and one at a hospital that differs from it in one patient on whom both train."""
    other = DataProcess("essen", other_patient(files["essen"]), station.home.with_name("other"), station.policy_file)
    return station, other


@pytest.mark.parametrize("privacy", [COUNTED, Privacy(blur=1.0)])
def test_sites_that_differ_in_one_patient_send_the_same_bits_beside_the_model(station, files, privacy):
    private = plan(privacy=privacy)
    said = []
    for one in twins(station, files):
        model = scaled(one, private)
        roll, _ = one.answer("roll", config(private), {})
        assert len(roll["config"].pop(MEETING)) == 64  # a random key, whoever the patients are
        answer, sent = one.answer("train", order(1, the_plan=private), model)
        beside = {name: value.tobytes() for name, value in sent.items() if not name.startswith("arrays/")}
        said.append((roll, answer, beside, {name: value.tobytes() for name, value in sent.items()}))

    assert said[0][:3] == said[1][:3]
    assert said[0][3] != said[1][3], "the patient was not trained on, so this shows nothing"
    assert "train-loss" not in said[0][1]["metrics"]


def test_without_privacy_the_loss_gives_the_patient_away(station, files):
    told = []
    for one in twins(station, files):
        answer, _ = one.answer("train", order(1), scaled(one))
        told.append(answer["metrics"]["train-loss"])

    assert told[0] != told[1]


def test_exact_sums_are_not_told_under_a_ledger(station):
    exact = plan(privacy=COUNTED)
    exact = exact.model_copy(update={"task": {k: v for k, v in exact.task.items() if k != "ranges"}})

    assert "ranges = {age = [0, 120]}" in refused(station, "roll", config(exact, **{TELL: [SUMS]}))


@pytest.mark.parametrize(
    ("recipe", "name", "line"),
    [
        ({"momentum": 0.9}, "FedDC", 'optimizer_state = "travel" takes it away'),
        ({}, "SCAFFOLD", 'rule = "scaffold" takes it away'),
    ],
)
def test_a_plan_whose_privacy_is_not_kept_is_refused_at_the_site_too(station, recipe, name, line):
    hostile = mlp(plan(name=name, privacy=Privacy(blur=1.0)), **recipe)

    assert line in refused(station, "roll", config(hostile))


def test_a_plan_that_hands_models_on_as_they_are_is_refused_in_a_line_that_says_what_to_write(station):
    station.policy_file.write_text(DEFAULT)

    for open_plan in (plan(), plan(privacy=Privacy(blur=0.0)), plan(privacy=Privacy(blur=0.5))):
        assert "write privacy = {exposure = 1.0} under its method" in refused(station, "roll", config(open_plan))
    for good in (plan(privacy=Privacy(blur=1.0)), plan(privacy=COUNTED), plan(name="FedAvg")):
        run = f"{good.method.name} {good.method.privacy}"
        assert "error" not in station.answer("roll", config(good, run), {})[0]


def one_by_one(privacy=None, name="FedAvg", **recipe):
    """A plan that gives patients away: a step on one patient."""
    return mlp(plan(name=name, privacy=privacy), batch=1, **recipe)


def readable(station, the_plan, model, sent, within=0.01):
    return patients_read(model, sent, the_plan, station._core[1].train.x, within=within)


def test_a_site_finds_its_own_patient_in_its_update_and_blurs_it(station):
    careless = one_by_one()
    model = scaled(station, careless)
    _, open_ = station.answer("train", order(1, the_plan=careless), model)
    assert readable(station, careless, model, open_) == 1

    station.policy_file.write_text(DEFAULT)
    answer, sent = station.answer("train", order(1, the_plan=careless), model)

    assert answer["metrics"]["blurred"] >= 1
    assert readable(station, careless, model, sent, 0.2) == 0
    assert "our patients could be read" in [e for e in station.log.entries() if e["event"] == "blurred"][-1]["reason"]


def test_a_site_that_does_not_like_to_blur_sends_nothing(station):
    careless = one_by_one()
    model = scaled(station, careless)
    station.policy_file.write_text(DEFAULT + 'when_read = "refuse"')

    assert "could be read from the update" in refused(station, "train", order(1, the_plan=careless), model)


def test_weight_decay_hides_no_patient_from_the_sites_own_attack(station):
    station.policy_file.write_text(DEFAULT)
    sly = one_by_one(weight_decay=1.0)
    model = scaled(station, sly)

    answer, _ = station.answer("train", order(1, the_plan=sly), model)

    assert answer["metrics"]["blurred"] >= 1


def test_what_decay_leaves_is_by_the_rates_of_the_rounds_that_were_trained():
    """With the first rate a model at the end of a cosine looked like an update of its own size, which no blur hides."""
    own = Recipe(lr=0.3, lr_schedule="cosine", weight_decay=0.02, batch=32)
    cosine = plan(aggregate_every=50).model_copy(update={"recipe": own, "rounds": 100})
    rates = [0.3 * (1 + np.cos(np.pi * t / 100)) / 2 for t in range(100)]
    rng = np.random.default_rng(0)
    patients = rng.normal(size=(40, 6))
    start = {"0.weight": np.float32([patients[3], -patients[3]]), "0.bias": np.float32([1, -1])}
    sent = {name: array + 1e-4 * rng.normal(size=array.shape).astype("f4") for name, array in start.items()}
    arrays, policy = (join(arrays=start), join(arrays=sent)), policy_from({})

    left = [left_by_decay(cosine, t, 2) for t in (1, 100)]

    assert left == pytest.approx([(1 - 0.006) ** 2, (1 - 0.02 * rates[-1]) ** 2])
    assert blur_update(*arrays, cosine, patients, left[1], policy, b"key" * 16).kappa == 0
    with pytest.raises(PolicyError, match="under any blur"):
        blur_update(*arrays, cosine, patients, left[0], policy, b"key" * 16)


@pytest.mark.parametrize("recipe", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_moments_that_travel_are_read_too_and_no_blur_of_the_model_helps(station, recipe):
    station.policy_file.write_text(DEFAULT)
    sly = one_by_one(**recipe)
    model = scaled(station, sly)

    assert 'optimizer_state = "reset"' in refused(station, "train", order(1, the_plan=sly), model)


def test_what_averages_over_many_patients_leaves_as_it_is(station):
    whole = mlp(plan(name="FedAvg"))
    model = scaled(station, whole)
    _, open_ = station.answer("train", order(1, the_plan=whole), model)
    station.policy_file.write_text(DEFAULT)

    answer, sent = station.answer("train", order(1, the_plan=whole), model)

    assert "blurred" not in answer["metrics"]
    assert same(sent, open_)


def test_who_asks_again_gets_the_same_noise_and_so_cannot_average_it_away(station):
    blur = plan(privacy=Privacy(blur=1.0))
    model = scaled(station, blur)

    _, first = station.answer("train", order(1, the_plan=blur), model)
    _, again = station.answer("train", order(1, the_plan=blur), model)
    (station.home / "noise.key").unlink()
    _, other_key = station.answer("train", order(1, the_plan=blur), model)

    assert same(first, again)
    assert not same(first, other_key)
    assert (station.home / "noise.key").stat().st_mode & 0o777 == 0o600


def sums_of(station, the_plan=None, run="r"):
    _, sums = station.answer("roll", config(the_plan or plan(), run, **{TELL: [SUMS]}), {})
    return sums


def shortened(path, rows):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 1 + rows]))
    return lines


def test_a_patient_who_is_added_does_not_follow_from_two_runs_by_subtraction(station, files):
    lines = shortened(files["essen"], 100)
    before = sums_of(station)
    files["essen"].write_text("".join(lines[:102]))

    after = sums_of(station, run="second")

    assert same(before, after)
    assert "sent as before" in [e for e in station.log.entries() if e["event"] == "kept"][-1]["reason"]


def test_new_sums_are_told_of_enough_new_patients(station, files):
    lines = shortened(files["essen"], 100)
    before = sums_of(station)
    files["essen"].write_text("".join(lines[:130]))

    assert not same(before, sums_of(station, run="second"))


def test_another_choice_of_columns_or_of_held_out_patients_is_no_way_around(station, files):
    lines = shortened(files["essen"], 30)
    before = sums_of(station)
    files["essen"].write_text("".join(lines[:32]))
    fewer = plan()
    fewer = fewer.model_copy(update={"task": {**fewer.task, "drop": ["mean radius"]}, "seed": 7})

    after = sums_of(station, fewer, run="second")

    for name, told in after.items():
        np.testing.assert_array_equal(told, before[name][1:])


def test_no_value_is_in_the_memory_of_sums(station, files):
    sums_of(station)
    kept = json.loads((station.home / "told_sums.json").read_text())

    patients = {float(v) for row in csv.reader(files["essen"].read_text().splitlines()[1:]) for v in row[:-1]}
    for name, feature in kept["features"].items():
        assert not patients & set(feature["last"][1:]), name
        assert all(len(digest) == 16 for digest in feature["seen"])
        assert not {blake2b(np.float64(v).tobytes(), digest_size=8).hexdigest() for v in patients} & set(
            feature["seen"]
        )


def test_a_site_of_two_patients_is_read_and_blurred(station, files):
    shortened(files["essen"], 3)
    tiny = mlp(plan(name="FedAvg", rounds=2))
    station.policy_file.write_text(DEFAULT + "least_samples = 1\ncount_floor = 1\n")
    model = scaled(station, tiny)

    answer, sent = station.answer("train", order(1, the_plan=tiny), model)

    assert answer["metrics"].get("blurred", 0) >= 1
    assert readable(station, tiny, model, sent, 0.2) == 0


def test_an_image_that_was_changed_is_not_known_again_so_its_update_stays():
    """A plain check would find nobody: the record that stands in the update is the patient's, mirrored and moved."""
    changed = plan().model_copy(update={"recipe": Recipe(augment=["flip", "shift"])})
    dense, small = {"arrays/1.weight": np.zeros((5, 64))}, {"arrays/0.weight": np.zeros((5, 1, 3, 3))}
    images, policy = np.random.default_rng(0).normal(size=(6, 1, 8, 8)), policy_from({})

    with pytest.raises(PolicyError, match="a layer sees each of them whole: what was changed could be read from the"):
        blur_update(dense, dense, changed, images, 1, policy, b"key")
    blurred = changed.model_copy(update={"method": changed.method.model_copy(update={"privacy": Privacy(blur=1.0)})})
    for arrays, the_plan in ((small, changed), (dense, blurred), (dense, plan())):
        assert blur_update(arrays, arrays, the_plan, images, 1, policy, b"key").read == 0


@pytest.mark.parametrize(("exposure", "is_left"), [(1.0, True), (50.0, False)])
def test_a_low_exposure_is_left_alone_though_records_of_two_numbers_are_near_by_chance(exposure, is_left):
    start = {"0.weight": np.zeros((2, 2), np.float32), "0.bias": np.zeros(2, np.float32)}
    model = {"0.weight": np.array([[1, 2], [1, 2]], np.float32), "0.bias": np.ones(2, np.float32)}
    patients, low = np.array([[1.0, 2.0], [-1.0, 1.0]]), plan(privacy=Privacy(exposure=exposure))

    found = blur_update(join(arrays=start), join(arrays=model), low, patients, 1, policy_from({}), b"key")

    assert (found.kappa == 0) == is_left
