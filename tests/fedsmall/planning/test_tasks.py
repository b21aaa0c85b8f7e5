import os
from pathlib import Path

import numpy as np
import pytest

from fedsmall.data.preparation import apply
from fedsmall.data.raw_site import agreed
from fedsmall.data.splits import hold_out
from fedsmall.errors import DataError, PlanError
from fedsmall.models.registry import build_model
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation, federation_from_arrays, load_site
from fedsmall.randomness import rng_for
from tests import ROOT

DATA = Path(os.environ.get("FEDSMALL_DATA", ROOT.parent / "shared" / "data"))


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (DATA / name).exists(), reason=f"{name} is not in the data folder (FEDSMALL_DATA)")


HEART, SUSY, PNEUMONIA = needs("heart_disease"), needs("susy"), needs("pneumoniamnist.npz")
TASKS = [
    "breast_cancer",
    "digits",
    "synthetic",
    {"name": "breast_cancer", "loss": "hinge"},
    pytest.param("susy", marks=SUSY),
    pytest.param({"medmnist": "pneumoniamnist"}, marks=PNEUMONIA),
    pytest.param("heart_disease", marks=HEART),
]


def plan(task="breast_cancer", **settings) -> Plan:
    settings = {"sites": 4, "samples_per_site": 5} | settings
    return Plan(name="t", task=task, method=Method(name="FedAvg"), **settings)


def natural(task="heart_disease", **settings) -> Plan:
    return plan(task, **({"sites": None, "samples_per_site": None} | settings))


def bits(federation) -> list[bytes]:
    parts = [*federation.train, *(held for held in federation.held_out if held), federation.test]
    return [array.tobytes() for part in parts for array in (part.x, part.y)]


@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("samples", [1, 2, 3])
def test_every_site_has_exactly_the_samples_asked_for_and_every_model_takes_them(task, samples):
    import torch

    federation = build_federation(plan(task, samples_per_site=samples, sites=12), DATA)

    assert [len(site) for site in federation.train] == [samples] * 12
    assert federation.names == tuple(sorted(federation.names))
    for name in ["linear", "mlp", *(["cnn", "resnet10"] if len(federation.task.input_shape) == 3 else [])]:
        model = build_model(name, federation.task, {}, rng_for(0, "t"))
        outputs = model(torch.from_numpy(federation.train[0].x))
        assert outputs.shape == (samples, federation.task.outputs)
        assert torch.isfinite(outputs).all()


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_a_federation_is_built_to_the_same_bits_whatever_the_global_generators_say(task):
    np.random.seed(1)  # noqa: NPY002
    first = build_federation(plan(task), DATA)
    np.random.seed(2)  # noqa: NPY002
    again = build_federation(plan(task), DATA)
    other = build_federation(plan(task, seed=1), DATA)

    assert bits(first) == bits(again)
    assert bits(first) != bits(other)


def test_samples_have_the_dtype_of_the_plan():
    narrow, wide = build_federation(plan()), build_federation(plan(dtype="float64"))

    assert (narrow.test.x.dtype, wide.test.x.dtype, wide.test.y.dtype) == (np.float32, np.float64, np.int64)
    assert np.array_equal(narrow.test.x, wide.test.x.astype(np.float32))


def test_the_synthetic_task_is_the_papers():
    federation = build_federation(plan("synthetic", sites=8, samples_per_site=100))

    assert (len(federation.test), federation.task.input_shape, federation.task.classes) == (400, (100,), 2)


def test_no_test_sample_is_trained_on():
    federation = build_federation(plan(sites=20, samples_per_site=20))

    trained = {row.tobytes() for site in federation.train for row in site.x}
    assert not trained & {row.tobytes() for row in federation.test.x}


def test_more_samples_than_there_are_is_said_with_both_numbers():
    with pytest.raises(PlanError, match="ask for 500 training samples and there are 427"):
        build_federation(plan(sites=50, samples_per_site=10))


def test_sites_of_one_class_are_noted_and_do_not_stop_the_run():
    federation = build_federation(plan(partition={"classes_per_site": 1}))

    assert federation.notes[0] == "4 of 4 sites hold samples of one class only"


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({}, "20 of 427 training rows were used (samples_per_site = 5)"),
        ({"test": 100}, "20 of 469 training rows were used (samples_per_site = 5)"),
        ({"folds": 3}, "20 of 559 training rows were used (samples_per_site = 5)"),
        ({"partition": {"sizes": [2, 3, 4, 5]}, "samples_per_site": None}, "14 of 427 training rows were used"),
        ({"samples_per_site": None}, None),
        ({"samples_per_site": None, "folds": 3}, None),
        ({"samples_per_site": None, "sites": 1}, None),
    ],
    ids=str,
)
def test_rows_that_no_site_trains_on_are_noted(settings, note):
    notes = build_federation(plan(**settings)).notes

    assert [each for each in notes if "training rows" in each] == ([] if note is None else [note])


def test_rows_that_natural_sites_leave_unused_are_noted():
    whole, part = (federation_from_arrays(natural("mine", samples_per_site=n), arrays(12, 16)) for n in (None, 5))

    rows = sum(map(len, whole.train))
    assert set(part.notes) - set(whole.notes) == {f"10 of {rows} training rows were used (samples_per_site = 5)"}


def test_ten_thousand_sites_keep_the_order_of_their_numbers():
    names = build_federation(plan("digits", sites=1200, samples_per_site=1)).names

    assert (names[0], names[-1]) == ("site-0000", "site-1199")
    assert list(names) == sorted(names)


@pytest.mark.parametrize(("count", "held"), [(1, 0), (2, 1), (3, 1), (4, 1), (8, 2), (100, 25)])
def test_a_quarter_of_every_class_is_held_out_but_never_its_only_sample(count, held):
    y = np.repeat([0, 1], [count, 40])

    kept, out = hold_out(y, 0.25, rng_for(0, "t"))

    assert np.bincount(y[out], minlength=2).tolist() == [held, 10]
    assert np.array_equal(np.sort(np.concatenate([kept, out])), np.arange(count + 40))


# Natural sites


@HEART
def test_heart_disease_keeps_its_four_hospitals():
    federation = build_federation(natural(), DATA)

    assert federation.names == ("cleveland", "hungarian", "switzerland", "va")
    totals = [len(train) + len(held) for train, held in zip(federation.train, federation.held_out, strict=True)]
    assert totals == [303, 294, 123, 200]  # patients by hospital, from UCI's page
    assert sum(map(len, federation.held_out)) == len(federation.test)
    assert all(np.isfinite(site.x).all() for site in (*federation.train, federation.test))
    assert any("switzerland did not contribute to standardising chol" in note for note in federation.notes)


@HEART
def test_a_hospital_alone_comes_to_the_samples_of_the_simulation_to_the_bit():
    together = build_federation(natural(seed=3), DATA)

    names = ("va", "switzerland", "cleveland", "hungarian")  # they answer in any order
    alone = [load_site(natural(seed=3), name, DATA / "heart_disease" / f"processed.{name}.data") for name in names]
    scaling = agreed(alone)

    for raw in alone:
        train, held = raw.samples(scaling)
        place = together.names.index(raw.name)
        assert train.x.tobytes() == together.train[place].x.tobytes()
        assert held.x.tobytes() == together.held_out[place].x.tobytes()
        assert raw.task == together.task


@pytest.mark.parametrize("settings", [{}, {"samples_per_site": 4}, {"folds": 3, "fold": 1}], ids=str)
def test_a_csv_at_a_site_gives_the_samples_of_the_simulation_to_the_bit(tmp_path, settings):
    rng = np.random.default_rng(0)
    tables = {name: rng.normal(size=(count, 3)) for name, count in {"b": 12, "a": 15, "c": 9}.items()}
    for name, rows in tables.items():
        lines = [
            f"{x},{'f' if z > 0 else 'm'},{y if y < 1 else ''},{index % 2}" for index, (x, y, z) in enumerate(rows)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,sex,y,ill", *lines]))
    task = {"csv": str(tmp_path), "label": "ill", "classes": [0, 1], "categorical": {"sex": ["f", "m"]}}

    together = build_federation(natural(task, **settings))
    alone = [load_site(natural(task, **settings), name, tmp_path / f"{name}.csv") for name in tables]

    for raw in alone:
        train, held = raw.samples(agreed(alone))
        place = together.names.index(raw.name)
        assert train.x.tobytes() == together.train[place].x.tobytes()
        assert held.y.tobytes() == together.held_out[place].y.tobytes()
        assert raw.task == together.task


def test_a_site_of_a_dealt_task_takes_its_share():
    together = build_federation(plan())

    raw = load_site(plan(), "site-002")

    assert raw.train.y.tolist() == together.train[2].y.tolist()
    with pytest.raises(PlanError, match="no site 'site-02'"):
        load_site(plan(), "site-02")


def test_a_site_with_its_own_file_needs_the_classes_of_all(tmp_path):
    task = {"csv": "a.csv", "label": "ill"}

    with pytest.raises(PlanError, match="need the classes in the task"):
        load_site(natural(task), "a", tmp_path)
    with pytest.raises(PlanError, match="need the values of a category"):
        load_site(natural({**task, "classes": [0, 1], "categorical": ["sex"]}), "a", tmp_path)
    with pytest.raises(DataError, match="not where its program looks") as caught:
        load_site(natural({**task, "classes": [0, 1]}), "a", tmp_path / "secret")
    assert "secret" not in str(caught.value)


def test_a_site_says_of_which_features_it_tells_nothing():
    x = np.column_stack([np.arange(8.0), np.where(np.arange(8) < 3, 1.0, np.nan)])
    raw = load_site(plan(sites=2, samples_per_site=3), "site-000")
    from dataclasses import replace

    from fedsmall.data.sources.pool import Part

    task = replace(raw.task, feature_names=("age", "dose"))
    raw = replace(raw, task=task, train=Part(x, np.arange(8) % 2), floor=5)

    assert raw.withheld() == ("dose",)
    assert np.isfinite(apply(agreed([raw]), x)).all()


@HEART
def test_sites_that_withhold_the_same_are_noted_in_one_line(tmp_path):
    doses = {"a": [1, 2, 3], "b": [4], "c": list(range(20)), "d": [], "e": [5, 6, 7]}
    for site, known in doses.items():
        rows = [f"{i},{known[i] if i < len(known) else '?'},{i % 2}\n" for i in range(20)]
        (tmp_path / f"{site}.csv").write_text("age,dose,ill\n" + "".join(rows))
    asked = natural({"csv": str(tmp_path), "label": "ill"}).model_copy(update={"partition": {"natural": "file"}})

    noted = [note for note in build_federation(asked).notes if "did not contribute" in note]

    assert noted == ["a, b, d, e did not contribute to standardising dose (fewer than 5 values)"]


def test_natural_sites_refuse_another_number_of_sites_and_more_samples_than_they_hold():
    with pytest.raises(PlanError, match="come from 4 sites and sites = 3"):
        build_federation(natural(sites=3, partition={"natural": "hospital"}), DATA)
    with pytest.raises(PlanError, match="samples_per_site = 100 and site 'switzerland' has 92"):
        build_federation(natural(samples_per_site=100), DATA)
    assert [len(site) for site in build_federation(natural(samples_per_site=7), DATA).train] == [7] * 4


# Folds


@PNEUMONIA
def test_folds_of_pneumonia_are_the_papers():
    task, settings = {"medmnist": "pneumoniamnist"}, {"sites": 3, "samples_per_site": 200, "folds": 4}

    federation = build_federation(plan(task, **settings), DATA)

    assert [len(site) for site in federation.train] == [200, 200, 200]
    assert len(federation.test) == 200
    extra = {name: len(samples) for name, samples in federation.extra}
    # 3,908 are in no fold; seven of them equal one that is, to the last bit
    assert extra == {"unused training samples": 3901, "official test": 624}


def test_no_test_sample_of_a_fold_is_trained_on_and_the_unused_ones_never_were(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (220, 8, 8), dtype=np.uint8)  # no two alike
    labels = np.arange(220) % 2
    arrays = {"train_images": pixels[:200], "train_labels": labels[:200]}
    np.savez(tmp_path / "dotmnist.npz", **arrays, test_images=pixels[200:], test_labels=labels[200:])
    settings = {"sites": 3, "samples_per_site": 10, "folds": 4}
    tests, seen = [], []

    for fold in range(4):
        federation = build_federation(plan({"medmnist": "dotmnist"}, fold=fold, **settings), tmp_path)
        tests.append({row.tobytes() for row in federation.test.x})
        seen.append({row.tobytes() for site in federation.train for row in site.x})
        unused = {row.tobytes() for row in dict(federation.extra)["unused training samples"].x}
        assert len(unused) == 160
        assert not unused & set.union(*tests, *seen)

    assert all(not test & trained for test, trained in zip(tests, seen, strict=True))
    assert len(set.union(*tests)) == len(set.union(*seen)) == 40


def test_folds_of_an_embedded_task_follow_its_partition():
    settings = {"sites": 6, "samples_per_site": 6, "folds": 3, "partition": {"classes_per_site": 2}}

    federation = build_federation(plan("digits", **settings))

    assert [len(np.unique(site.y)) for site in federation.train] == [2] * 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"folds": 3, "fold": 3}, "fold = 3 is none of the folds 0 to 2"),
        ({"folds": 3, "sites": None, "samples_per_site": None}, "folds need a number of sites"),
        ({"folds": 3, "sites": 100}, "take 750; the data have 569"),
    ],
)
def test_folds_that_cannot_be_had_say_why(settings, words):
    with pytest.raises(PlanError, match=words):
        build_federation(plan(**settings))


# Arrays


def arrays(*counts):
    rng = np.random.default_rng(0)
    return {f"s{place}": (rng.normal(size=(count, 3)), rng.integers(0, 2, count)) for place, count in enumerate(counts)}


def test_arrays_of_ones_own_become_a_federation():
    sites = arrays(12, 16)

    held = federation_from_arrays(natural("mine"), sites)
    given = federation_from_arrays(natural({"name": "mine", "loss": "logistic"}), sites, test=arrays(9)["s0"])

    assert held.names == ("s0", "s1")
    assert len(held.test) == sum(map(len, held.held_out))
    assert ([len(site) for site in given.train], len(given.test), given.held_out) == ([12, 16], 9, (None, None))
    assert given.task.outputs == 1
    assert (given.task.name, held.task.name) == ("mine", "mine")


def test_arrays_keep_their_sites_whatever_the_plan_says_of_sites():
    assert federation_from_arrays(plan("mine", sites=2, samples_per_site=3), arrays(12, 16)).names == ("s0", "s1")
    with pytest.raises(PlanError, match="come from 2 sites and sites = 4"):
        federation_from_arrays(plan("mine", sites=4), arrays(12, 16))


def test_a_class_that_only_the_test_set_holds_is_a_class():
    federation = federation_from_arrays(natural("mine"), arrays(12), test=(np.zeros((3, 3)), np.array([0, 1, 2])))

    assert federation.task.classes == 3


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sites_of_one_two_and_three_samples_stand(count):
    sites = {name: (np.arange(count * 2.0).reshape(count, 2), np.arange(count) % 2) for name in "ab"}

    federation = federation_from_arrays(
        natural({"name": "t", "classes": [0, 1]}), sites, test=(np.zeros((2, 2)), np.array([0, 1]))
    )

    assert [len(site) for site in federation.train] == [count, count]


def test_sites_too_small_to_hold_anything_out_need_a_test_set():
    sites = {name: (np.zeros((1, 2)), np.array([place])) for place, name in enumerate("ab")}

    with pytest.raises(DataError, match="give a test set"):
        federation_from_arrays(natural("mine"), sites)


def test_graphs_are_a_task_of_regression_like_any_other():
    federation = build_federation(plan({"connectomes": "generated", "regions": 40, "subjects": 24}, samples_per_site=3))

    assert (federation.task.input_shape, federation.task.outputs) == ((595,), 780)
    assert (federation.task.loss, federation.task.metrics) == ("l1", ("mae", "loss"))
    assert federation.train[0].y.shape == (3, 780)
    assert federation.train[0].y.dtype == np.float32
    assert len(federation.test) == 6
