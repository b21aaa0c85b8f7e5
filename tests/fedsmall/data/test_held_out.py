"""How much is held out: a number, a share, or the source's own test set; and what cannot be had."""

import numpy as np
import pytest

from fedsmall.data.splits import hold_out
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from tests.fedsmall.data.test_sources import images, plan

TABLE = "x,ill\n" + "".join(f"{row / 3},{row % 4 // 3}\n" for row in range(80))


def csv_of(folder, text=TABLE):
    (folder / "a.csv").write_text(text)
    return {"csv": str(folder / "a.csv"), "label": "ill"}


def npz_of(folder, test=10):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40 + test, 3)), np.arange(40 + test) % 2
    np.savez(folder / "a.npz", x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:])
    return {"npz": str(folder / "a.npz")}


@pytest.mark.parametrize(("test", "held"), [(None, 20), (16, 16), (1, 1), (13, 13), (0.2, 16), (0.5, 40)])
def test_so_many_are_held_out_as_are_asked_for_in_the_shares_of_the_classes(tmp_path, test, held):
    federation = build_federation(plan(csv_of(tmp_path), test=test))

    assert len(federation.test) == held
    assert abs(federation.test.y.sum() - held / 4) < 1


def test_a_number_is_shared_among_the_classes_to_within_one():
    y = np.repeat([0, 1, 2], [98, 155, 7])

    for count in range(1, 260):
        out = hold_out(y, count, rng_for(0, "t"))[1]
        assert len(out) == count
        assert np.abs(np.bincount(y[out], minlength=3) - count * np.array([98, 155, 7]) / 260).max() < 1


def test_all_that_is_not_held_out_can_be_dealt(tmp_path):
    federation = build_federation(plan(csv_of(tmp_path), test=20, sites=12, samples_per_site=5))

    assert sum(map(len, federation.train)) + len(federation.test) == 80


@pytest.mark.parametrize(("test", "held", "extra"), [(None, 10, ()), ("official", 10, ()), (8, 8, ("official test",))])
def test_an_official_test_set_is_the_test_unless_another_is_asked_for(tmp_path, test, held, extra):
    federation = build_federation(plan(npz_of(tmp_path), test=test))

    assert len(federation.test) == held
    assert tuple(name for name, _ in federation.extra) == extra


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"test": 300}, "make 312; there are 80"),
        ({"test": 70, "sites": 3, "samples_per_site": 4}, "test = 70 and at least 12 samples to train on make 82"),
        ({"test": "official"}, "no test set of their own"),
        ({"test": 0.001}, "holds none of them out"),
        ({"test": 0.9, "sites": 9}, "ask for 36 training samples and there are 8"),
    ],
)
def test_a_test_set_that_cannot_be_had_is_one_line_with_the_numbers(tmp_path, settings, words):
    with pytest.raises(PlanError, match=words) as caught:
        build_federation(plan(csv_of(tmp_path), **settings))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("test", [0, -3, True, 1.0, 1.5, 0.0, "half", [1]])
def test_a_test_that_means_nothing_is_refused_when_the_plan_is_made(test):
    with pytest.raises(ValueError, match=r'number of samples \(53\), a share \(0.2\) or "official"'):
        plan("digits", test=test)


def test_folds_and_a_test_exclude_each_other():
    with pytest.raises(ValueError, match="remove one of them"):
        plan("digits", folds=4, test=0.2)


def test_sites_of_their_own_hold_out_a_share_each_and_no_number(tmp_path):
    for name in ("essen", "liege"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.csv").write_text(TABLE)
    task = {"csv": str(tmp_path), "label": "ill"}
    alone = {"sites": None, "samples_per_site": None}

    federation = build_federation(plan(task, test=0.5, **alone))

    assert [len(held) for held in federation.held_out] == [40, 40]
    for test, words in ((53, "counts samples of all"), ("official", "no test set of their own")):
        with pytest.raises(PlanError, match=words):
            build_federation(plan(task, test=test, **alone))


def test_a_plan_without_a_test_has_the_data_key_of_runs_that_knew_none():
    old = plan("digits")

    assert '"test"' not in old.data_key
    assert plan("digits", test=0.3).data_key != old.data_key
    assert plan("digits", test="official").data_key != plan("digits", test=0.3).data_key
    assert Plan(**{name: value for name, value in old.model_dump().items() if name != "test"}) == old


# Images


def test_an_official_folder_of_test_images_is_the_test_set(tmp_path):
    task = {"images": images(tmp_path / "train"), "test": images(tmp_path / "test", each=3), "channels": 3}

    federation = build_federation(plan(task, test="official"))

    assert (len(federation.test), federation.task.input_shape) == (6, (3, 6, 5))
    assert sum(map(len, federation.train)) == 12


def test_sites_in_folders_have_their_own_official_tests(tmp_path):
    for site in ("south", "north"):
        images(tmp_path / "train" / site)
        images(tmp_path / "test" / site, each=3)
    task = {"images": str(tmp_path / "train"), "test": str(tmp_path / "test")}
    alone = {"partition": {"natural": "folder"}, "sites": None, "samples_per_site": None}

    federation = build_federation(plan(task, **alone))

    assert [(len(train), len(held)) for train, held in zip(federation.train, federation.held_out, strict=True)] == [
        (16, 6),
        (16, 6),
    ]


@pytest.mark.parametrize(
    ("size", "shape"), [(4, (1, 4, 4)), ([4, 4], (1, 4, 4)), ([3, 4], (1, 3, 4)), (150, (1, 150, 150))]
)
def test_a_size_is_a_side_or_height_and_width(tmp_path, size, shape):
    assert build_federation(plan({"images": images(tmp_path), "size": size})).task.input_shape == shape


@pytest.mark.parametrize("size", [0, -28, [0, 0], [28, -1], [28], [1, 2, 3], "28", 2.5, [2.5, 3], True, 10**9])
def test_a_size_that_no_image_has_is_one_line(tmp_path, size):
    with pytest.raises(PlanError, match=r"size is a side \(150\) or height and width"):
        build_federation(plan({"images": images(tmp_path), "size": size}))


@pytest.mark.parametrize(
    "options", [{"channels": 2}, {"channels": "rgb"}, {"channels": 1, "colour": True}, {"colour": 3}]
)
def test_images_are_grey_or_in_colour(tmp_path, options):
    with pytest.raises(PlanError, match="channels = 1 is grey and channels = 3 is colour"):
        build_federation(plan({"images": images(tmp_path), **options}))


def test_the_mri_scenario_deals_all_253_scans_as_printed(tmp_path):
    from fedsmall.sim.runs.scenario import load
    from tests import ROOT

    images(tmp_path / "brain_tumor_dataset", classes=("no",), each=98)
    images(tmp_path / "brain_tumor_dataset", classes=("yes",), each=155)

    printed = load(ROOT / "sim" / "scenarios" / "papers" / "feddc_table1_mri.toml").plans()[0]
    federation = build_federation(printed, tmp_path)

    assert [len(site) for site in federation.train] == [8] * 25
    assert len(federation.test) == 53
    assert federation.task.input_shape == (3, 150, 150)


def test_cifar10_is_read_from_an_npz_under_the_data_root(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8), np.arange(60) % 10
    np.savez(tmp_path / "cifar10.npz", x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:])

    federation = build_federation(plan("cifar10"), tmp_path)

    assert (federation.task.input_shape, federation.task.classes, len(federation.test)) == ((3, 32, 32), 10, 20)
