"""Rows of a patient, and equal samples, are on one side of every split, and a patient's at one site."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from fedsmall.data import preparation
from fedsmall.data.raw_site import class_sums
from fedsmall.data.sources.pool import Part
from fedsmall.data.splits import fold_pool, fold_split, hold_out, kin_of, partition_of_patients, stratified_folds, twins
from fedsmall.errors import DataError, PlanError
from fedsmall.plan import Plan
from fedsmall.planning.check import check_site
from fedsmall.planning.tasks import build_federation, federation_from_arrays, load_site
from fedsmall.randomness import rng_for
from tests.fedsmall.data.test_sources import plan

Whose = np.ndarray


@st.composite
def patients_and_classes(draw: Any) -> tuple[Whose, np.ndarray]:
    """Up to six samples for each of 12 to 30 patients, of two classes, in any order."""
    counts = draw(st.lists(st.integers(1, 6), min_size=12, max_size=30))
    whose = draw(st.permutations(np.repeat(np.arange(len(counts)), counts).tolist()))
    return np.array(whose), np.array(draw(st.lists(st.integers(0, 1), min_size=len(whose), max_size=len(whose))))


def written(folder: Path, patients: int = 40, name: str = "a.csv", seed: int = 0, hospital: bool = False) -> str:
    """A table of one to four rows for each patient."""
    rng = np.random.default_rng(seed)
    rows = [
        f"{patient},{rng.normal():.6f},{rng.normal():.6f},{patient % 2}" + (f",h{patient % 3}" if hospital else "")
        for patient in range(patients)
        for _ in range(1 + patient % 4)
    ]
    (folder / name).write_text("\n".join(["patient_id,x,z,ill" + (",clinic" if hospital else ""), *rows]) + "\n")
    return str(folder / name)


def task_of(path: str) -> dict[str, Any]:
    return {"csv": path, "label": "ill", "classes": ["0", "1"], "patient": "patient_id"}


def whose_is(path: str) -> dict[bytes, str]:
    """The patient of each sample, by its features as they were read."""
    lines = [line.split(",") for line in Path(path).read_text().splitlines()[1:]]
    return {np.array([float(x), float(z)]).tobytes(): who for who, x, z, *_ in lines}


def raw_patients(federation: Any, path: str) -> tuple[list[set[str]], set[str]]:
    """Who is at each site, and who is held out, known by the features and not by what the code under test says."""
    agreed = federation.preparation.agreed
    mean, scale = np.array(agreed.mean), np.array(agreed.scale)
    known = {tuple(((np.frombuffer(x) - mean) / scale).astype(np.float32)): who for x, who in whose_is(path).items()}
    sides = [{known[tuple(x)] for x in part.x} for part in (*federation.train, federation.test)]
    return sides[:-1], sides[-1]


# Groups


def test_equal_samples_are_found_to_the_last_bit() -> None:
    x = np.random.default_rng(0).normal(size=(9000, 3))
    x[5000], x[17], x[8999] = x[3], x[3], x[4]
    x[20], x[21] = [0.0, np.nan, 1], [-0.0, np.nan, 1]
    x[30] = np.nextafter(x[31], np.inf)

    group = twins(x)

    same = [np.flatnonzero(group == one).tolist() for one in range(group.max() + 1)]
    assert sorted(rows for rows in same if len(rows) > 1) == [[3, 17, 5000], [4, 8999], [20, 21]]


@pytest.mark.thorough
@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=40))
def test_equal_samples_are_those_with_equal_bytes(rows: list[list[int]]) -> None:
    x = np.array(rows, dtype=np.uint8)

    group = twins(x)

    assert ((group[:, None] == group[None]) == (x[:, None] == x[None]).all(axis=2)).all()


def test_a_patient_and_who_shares_a_sample_are_one_group() -> None:
    x = np.arange(6.0)[:, None]
    x[4] = x[1]

    kin = kin_of(Part(x, np.zeros(6, int), np.array([7, 7, 9, 3, 3, 5])))

    assert kin is not None
    assert len(set(kin[[0, 1, 3, 4]])) == 1
    assert len(set(kin)) == 3


def test_samples_of_a_few_answers_are_no_copies() -> None:
    answers = np.arange(40)[:, None] % 8.0

    assert kin_of(Part(answers, np.zeros(40, int))) is None
    assert kin_of(Part(np.arange(40)[:, None] % 20.0, np.zeros(40, int))) is not None


# Sides


@given(patients_and_classes(), st.one_of(st.integers(1, 12), st.sampled_from([0.2, 0.5])))
def test_what_is_held_out_are_whole_patients_near_to_what_was_asked(
    held: tuple[Whose, np.ndarray], test: int | float
) -> None:
    whose, y = held

    kept, out = hold_out(y, test, rng_for(0, "t"), whose)

    assert sorted([*kept, *out]) == list(range(len(y)))
    assert not set(whose[kept]) & set(whose[out])
    asked = test if isinstance(test, int) else test * len(y)
    assert len(out) <= asked + 6 + 2


def test_a_split_that_tears_nobody_stays_as_it_is() -> None:
    y = np.arange(80) % 4 // 3
    plain = hold_out(y, 0.25, rng_for(0, "t"))[1]
    group = np.arange(80)
    group[plain[1]] = plain[0]

    _, again = hold_out(y, 0.25, rng_for(0, "t"), np.unique(group, return_inverse=True)[1])

    np.testing.assert_array_equal(again, plain)


def test_who_has_many_samples_is_held_out_as_often_as_who_has_one() -> None:
    whose, y = np.repeat(np.arange(40), np.where(np.arange(40) < 20, 1, 5)), np.zeros(120, dtype=int)

    often = np.zeros(40)
    for seed in range(400):
        often[np.unique(whose[hold_out(y, 0.3, rng_for(seed, "t"), whose)[1]])] += 1

    assert abs(often[:20].mean() - often[20:].mean()) < 0.1 * often.mean()


@given(patients_and_classes(), st.integers(2, 4), st.integers(1, 5))
def test_folds_and_their_sites_are_of_whole_patients(held: tuple[Whose, np.ndarray], folds: int, sites: int) -> None:
    whose, _ = held
    y = np.zeros(len(whose), dtype=int)

    parts = stratified_folds(y, folds, 0, whose)
    train, test = fold_split(y, folds, 0, sites, 0, whose)

    for sides in (parts, (*train, test)):
        assert sorted(np.concatenate(sides)) == list(range(len(y)))
        assert sum(len(set(whose[side])) for side in sides) == len(set(whose))


def test_a_pool_of_folds_holds_one_of_each_group_and_is_else_as_it_was() -> None:
    y = np.arange(100) % 2
    plain = fold_pool(y, 4, 3, 10, 0)
    kin = np.arange(100)
    kin[plain[5]] = kin[plain[8]] = kin[plain[0]]

    pool = fold_pool(y, 4, 3, 10, 0, np.unique(kin, return_inverse=True)[1])

    assert len(pool) == len(plain) == 40
    assert len(set(kin[pool])) == 40
    assert set(plain) - set(pool) == {plain[5], plain[8]}
    np.testing.assert_array_equal(np.bincount(y[pool]), np.bincount(y[plain]))


# Sites


@given(patients_and_classes(), st.sampled_from(["iid", {"sizes": "skewed"}, {"sizes": [6, 4, 3]}]), st.booleans())
def test_a_patient_is_at_one_site(held: tuple[Whose, np.ndarray], spec: Any, all_of_them: bool) -> None:
    whose, y = held
    per_site = None if all_of_them else 3

    try:
        shares = partition_of_patients(y, whose, spec, 3, per_site, rng_for(0, "t"))
    except PlanError:
        assume(False)  # three sites of so many cannot be had

    assert sum(len(set(whose[share])) for share in shares) == len(set(whose[np.concatenate(shares)]))
    assert len(np.unique(np.concatenate(shares))) == sum(map(len, shares))
    if isinstance(spec, dict) and isinstance(spec["sizes"], list):
        assert [len(share) for share in shares] == spec["sizes"]
    elif spec == "iid" and per_site:
        assert [len(share) for share in shares] == [3, 3, 3]
    elif per_site is None:
        assert sum(map(len, shares)) == len(y)


@pytest.mark.thorough
@pytest.mark.parametrize("spec", [{"classes_per_site": 1}, {"dirichlet": 0.3}])
def test_classes_are_dealt_by_the_patients_classes(spec: Any) -> None:
    whose = np.repeat(np.arange(60), 3)
    y = whose % 2

    shares = partition_of_patients(y, whose, spec, 4, None, rng_for(0, "t"))

    assert sum(len(set(whose[share])) for share in shares) == 60
    if "classes_per_site" in spec:
        assert all(len(set(y[share])) == 1 for share in shares)
    with pytest.raises(PlanError, match="cannot give every site exactly 3; leave samples_per_site out"):
        partition_of_patients(y, whose, spec, 4, 3, rng_for(0, "t"))


# From a file


@pytest.mark.parametrize(
    "settings",
    [
        {"sites": 4, "samples_per_site": 5},
        {"sites": 5, "samples_per_site": None},
        {"sites": 4, "samples_per_site": 5, "test": 21},
        {"sites": 4, "samples_per_site": None, "test": 0.3, "partition": {"dirichlet": 5.0}},
        {"sites": 3, "samples_per_site": None, "folds": 4},
        {"sites": 3, "samples_per_site": 8, "folds": 4},
        {"sites": 3, "samples_per_site": 4, "folds": 4, "partition": {"sizes": "skewed"}},
    ],
)
def test_every_patient_of_a_table_is_at_one_site_and_on_one_side(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = written(tmp_path)

    federation = build_federation(plan(task_of(path), **settings))

    sites, held = raw_patients(federation, path)
    everybody = [*sites, held]
    assert sum(map(len, everybody)) == len(set().union(*everybody))
    assert federation.task.feature_names == ("x", "z")
    assert any(note.startswith("Split by patients: ") for note in federation.notes)
    if settings.get("samples_per_site") and settings.get("partition") is None:
        assert {len(site) for site in federation.train} == {settings["samples_per_site"]}


def test_without_the_column_patients_are_torn(tmp_path: Path) -> None:
    path = written(tmp_path)
    task = {"csv": path, "label": "ill", "drop": ["patient_id"]}

    sites, held = raw_patients(build_federation(plan(task, sites=4, samples_per_site=5)), path)

    assert held & set().union(*sites)


def test_a_number_that_whole_patients_do_not_make_is_said(tmp_path: Path) -> None:
    text = "".join(f"p{row // 4},{row / 7},{row // 4 % 2}\n" for row in range(80))
    (tmp_path / "a.csv").write_text("patient_id,x,ill\n" + text)

    federation = build_federation(plan(task_of(str(tmp_path / "a.csv")), sites=2, samples_per_site=4, test=22))

    assert "test = 22, and 24 are held out: patients and equal samples stay together" in federation.notes


def test_a_site_holds_out_patients_alone_as_it_does_in_a_simulation(tmp_path: Path) -> None:
    for seed, name in enumerate(("essen.csv", "liege.csv")):
        written(tmp_path, 24, name, seed)
    alone: dict[str, Any] = {"sites": None, "samples_per_site": None, "partition": {"natural": "file"}}
    shared = plan(task_of(str(tmp_path)), **alone)

    raw = load_site(shared, "liege", tmp_path / "liege.csv")
    federation = build_federation(shared)

    who = whose_is(str(tmp_path / "liege.csv"))
    assert raw.held_out is not None
    sides = [{who[x.tobytes()] for x in part.x} for part in (raw.train, raw.held_out)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 24
    assert [len(part) for part in (raw.train, raw.held_out)] == [
        len(federation.train[1]),
        len(federation.held_out[1] or ()),
    ]
    np.testing.assert_array_equal(raw.train.y, federation.train[1].y)
    assert "48 are held out" not in "".join(federation.notes)


def test_the_check_of_a_site_says_how_patients_were_split(tmp_path: Path) -> None:
    path = Path(written(tmp_path))
    alone = plan(task_of(str(path)), sites=None, samples_per_site=None, partition={"natural": "file"})

    lines = "\n".join(check_site(alone, "essen", path).lines())

    assert "and all samples of a patient on one side" in lines
    assert "No held-out sample is trained on" in lines
    assert str(tmp_path) not in lines


def test_sums_are_told_of_enough_patients_and_not_of_enough_rows() -> None:
    x = np.stack([np.arange(8.0), np.where(np.arange(8) < 6, np.nan, 1.0)], axis=1)
    one_each, two = np.arange(8), np.arange(8) // 4

    assert preparation.sums(x, 5, one_each).count.tolist() == [8, 0]
    assert preparation.sums(x, 5, two).count.tolist() == [0, 0]
    assert preparation.sums(x, 2, two).count.tolist() == [8, 0]


def test_classes_are_told_of_enough_patients() -> None:
    y = np.arange(40) % 2
    two_of_class_0 = np.where(y == 0, np.arange(40) // 20 + 100, np.arange(40))

    assert class_sums(y, 2, 5, np.arange(40)).total.tolist() == [20, 20]
    assert class_sums(y, 2, 5, two_of_class_0).total.tolist() == [0, 0]


def test_a_patient_of_one_table_has_one_hospital(tmp_path: Path) -> None:
    task = task_of(written(tmp_path, hospital=True))
    natural: Plan = plan(task, sites=None, samples_per_site=None, partition={"natural": "clinic"})

    assert build_federation(natural).names == ("h0", "h1", "h2")
    with (tmp_path / "a.csv").open("a") as file:
        file.write("0,1.5,2.5,0,h2\n")
    with pytest.raises(DataError, match="1 of the patients in column 'patient_id' have rows at more than one site"):
        build_federation(natural)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patient": "pid"}, r"there is no column 'pid' \(whose each row is\)"),
        ({"patient": "ill"}, "it can be neither a feature nor the label"),
        ({"features": ["patient_id", "x"]}, "it can be neither a feature nor the label"),
    ],
)
def test_a_patient_that_cannot_be_is_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises((DataError, PlanError), match=words):
        build_federation(plan({**task_of(written(tmp_path)), **change}))


def test_rows_without_a_patient_are_an_error(tmp_path: Path) -> None:
    path = Path(written(tmp_path))
    path.write_text(path.read_text() + ",1.5,2.5,0\n?,1.5,2.5,1\n")

    with pytest.raises(DataError, match="column 'patient_id' names no patient in 2 of 102 rows"):
        build_federation(plan(task_of(str(path))))


# Images


def scanned(folder: Path, patients: range, each: int) -> None:
    rng = np.random.default_rng(len(patients))
    for patient in patients:
        place = folder / ("ill" if patient % 2 else "well")
        place.mkdir(parents=True, exist_ok=True)
        for scan in range(each):
            Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(place / f"person{patient}_{scan}.png")


def test_a_patient_s_images_are_known_by_their_names(tmp_path: Path) -> None:
    scanned(tmp_path / "scans", range(30), 3)
    task = {"images": str(tmp_path / "scans"), "patient": r"person(\d+)_"}

    federation = build_federation(plan(task, sites=4, samples_per_site=4))

    files = sorted((tmp_path / "scans").glob("*/*.png"))
    whose = {np.asarray(Image.open(file)).tobytes(): file.name.split("_")[0] for file in files}
    pixels = [np.round((part.x + 1) * 127.5).astype(np.uint8) for part in (*federation.train, federation.test)]
    sides = [{whose[image.tobytes()] for image in held} for held in pixels]
    assert sum(map(len, sides)) == len(set().union(*sides))
    assert [len(site) for site in federation.train] == [4] * 4


def of_arrays(folder: Path, patients: int = 24, name: str = "a", key: str = "patient", **more: Any) -> np.ndarray:
    """An .npz of one to four samples for each patient, whose first feature is the patient; the names."""
    whose = np.repeat(np.arange(patients), 1 + np.arange(patients) % 4)
    whose = whose[np.random.default_rng(0).permutation(len(whose))]
    x = np.column_stack([whose, np.random.default_rng(len(name)).normal(size=len(whose))])
    names = np.array([f"case {who}" for who in whose])
    np.savez(folder / f"{name}.npz", **{"x": x, "y": whose % 2, key: names} | more)
    return names


def first_features(federation: Any) -> tuple[list[set[float]], set[float]]:
    """Who is at each site and who is held out, by the feature that is the patient."""
    return [set(site.x[:, 0].tolist()) for site in federation.train], set(federation.test.x[:, 0].tolist())


@pytest.mark.parametrize("said", [{}, {"patient": "patient"}])
def test_patients_of_arrays_are_at_one_site_and_on_one_side(tmp_path: Path, said: dict[str, str]) -> None:
    of_arrays(tmp_path)

    federation = build_federation(plan({"npz": str(tmp_path / "a.npz"), **said}, sites=4, samples_per_site=5))

    sites, held = first_features(federation)
    assert not set.intersection(*sites)
    assert sum(map(len, sites)) == len(set.union(*sites))
    assert held.isdisjoint(set.union(*sites))
    assert any(note.startswith("Split by patients: 20 samples of ") for note in federation.notes)


def test_arrays_and_a_table_of_the_same_patients_are_dealt_alike(tmp_path: Path) -> None:
    table = written(tmp_path)
    rows = [line.split(",") for line in Path(table).read_text().splitlines()[1:]]
    x = np.array([[float(x), float(z)] for _, x, z, _ in rows])
    whose, y = np.array([int(row[0]) for row in rows]), np.array([int(row[3]) for row in rows])
    np.savez(tmp_path / "a.npz", x=x, y=y, who=whose[:, None].astype(float))

    one, other = (
        build_federation(plan(task, sites=4, samples_per_site=5))
        for task in (task_of(table), {"npz": str(tmp_path / "a.npz"), "patient": "who"})
    )

    assert one.notes == other.notes
    for mine, theirs in zip((*one.train, one.test), (*other.train, other.test), strict=True):
        np.testing.assert_array_equal(mine.y, theirs.y)
        np.testing.assert_allclose(mine.x, theirs.x)


def test_without_the_array_patients_of_arrays_are_torn(tmp_path: Path) -> None:
    of_arrays(tmp_path, key="somebody")

    sites, held = first_features(build_federation(plan({"npz": str(tmp_path / "a.npz")}, sites=4, samples_per_site=5)))

    assert held & set.union(*sites)


def test_hospitals_number_the_patients_of_their_arrays_themselves(tmp_path: Path) -> None:
    (tmp_path / "h").mkdir()
    for name in ("bonn", "essen-k"):
        of_arrays(tmp_path / "h", name=name)
    task = {"npz": str(tmp_path / "h"), "patient": "patient", "classes": [0, 1]}

    federation = build_federation(plan(task, partition={"natural": "file"}, sites=None))
    alone = load_site(plan(task, partition={"natural": "file"}, sites=None), "bonn", tmp_path / "h" / "bonn.npz")

    assert np.intersect1d(*(site.patients for site in federation.train)).size == 0
    np.testing.assert_array_equal(alone.train.patients, federation.train[0].patients)
    for site, held in zip(federation.train, federation.held_out, strict=True):
        assert np.intersect1d(site.patients, held.patients).size == 0


def test_patients_of_an_official_test_set_in_arrays_are_known(tmp_path: Path) -> None:
    x_test = np.column_stack([np.arange(4), np.full(4, 9.0)])
    test = {"x_test": x_test, "y_test": np.arange(4) % 2}
    of_arrays(tmp_path, **test, patient_test=np.array(["case 1", "case 2", "new", "newer"]))

    notes = build_federation(plan({"npz": str(tmp_path / "a.npz")}, sites=2, samples_per_site=None)).notes

    assert any("2 patients of the source's own test set are trained on" in note for note in notes)


def test_patients_of_arrays_in_python_are_on_one_side() -> None:
    whose = np.repeat(np.arange(20), 3)
    x = np.column_stack([whose, np.random.default_rng(0).normal(size=60)])
    sites = {"bonn": (x, whose % 2), "essen": (x + 9 * x[:, 1:], whose % 2)}
    mine = {"name": "mine", "classes": [0, 1]}

    federation = federation_from_arrays(plan(mine, sites=None), sites, patients=dict.fromkeys(sites, whose))

    for site, held in zip(federation.train, federation.held_out, strict=True):
        assert np.intersect1d(site.x[:, 0], held.x[:, 0]).size == 0
    with pytest.raises(DataError, match="1 of 2 sites do not say whose each sample is; say it at all, or at none"):
        federation_from_arrays(plan(mine, sites=None), sites, patients={"bonn": whose})
    with pytest.raises(DataError, match=r"site 'essen': patients have shape \(59,\) and type int64"):
        federation_from_arrays(plan(mine, sites=None), sites, patients={"bonn": whose, "essen": whose[1:]})


def test_hospitals_of_which_one_does_not_say_whose_samples_are_are_refused(tmp_path: Path) -> None:
    of_arrays(tmp_path, name="bonn")
    of_arrays(tmp_path, name="essen-k", key="somebody")

    for said, words in (
        ({}, "1 of 2 sites do not say whose each sample is"),
        ({"patient": "patient"}, "site 'essen-k': the .npz holds no array 'patient'"),
    ):
        with pytest.raises(DataError, match=words):
            build_federation(plan({"npz": str(tmp_path), **said}, partition={"natural": "file"}, sites=None))


def test_a_patient_of_an_official_test_set_who_is_trained_on_is_said(tmp_path: Path) -> None:
    scanned(tmp_path / "train", range(12), 2)
    scanned(tmp_path / "test", range(10, 16), 1)
    task = {"images": str(tmp_path / "train"), "test": str(tmp_path / "test"), "patient": r"person(\d+)_"}

    notes = build_federation(plan(task, sites=3, samples_per_site=8)).notes

    assert any("2 patients of the source's own test set are trained on" in note for note in notes)


@pytest.mark.parametrize(
    ("pattern", "words"), [("(", "patient is a regular expression"), (r"case(\d+)", r"6 of 6 names .* no patient")]
)
def test_a_pattern_that_finds_nobody_is_one_line(tmp_path: Path, pattern: str, words: str) -> None:
    scanned(tmp_path, range(6), 1)

    with pytest.raises((DataError, PlanError), match=words) as caught:
        build_federation(plan({"images": str(tmp_path), "patient": pattern}, sites=2, samples_per_site=1))

    assert "person1_" not in str(caught.value)


# Equal samples


def test_equal_rows_are_never_on_both_sides(tmp_path: Path) -> None:
    rows = [f"{row / 7},{row % 3},{row % 2}" for row in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["x,z,ill", *rows, *rows]) + "\n")
    task = {"csv": str(tmp_path / "a.csv"), "label": "ill"}

    for seed in range(10):
        federation = build_federation(plan(task, sites=4, samples_per_site=None, seed=seed))
        trained = {x.tobytes() for site in federation.train for x in site.x}
        assert not trained & {x.tobytes() for x in federation.test.x}
        assert len(federation.test) == 28  # of 15 a class in pairs
        assert (
            "Samples that equal another to the last bit: 60, none of them both trained on and held out"
            in federation.notes
        )


def test_a_source_s_own_test_set_stays_and_what_is_in_both_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=np.concatenate([x[:3], rng.normal(size=(7, 3))]), y_test=y[:10])

    federation = build_federation(plan({"npz": str(tmp_path / "a.npz")}, sites=4, samples_per_site=10))

    assert len(federation.test) == 10
    assert (
        "Equal to a sample that is trained on: 3 of the source's own test set; results look better than they are"
        in federation.notes
    )


def test_a_few_answers_are_dealt_as_different_patients_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,ill\n" + "".join(f"{row % 5},{row % 2}\n" for row in range(100)))

    federation = build_federation(plan({"csv": str(tmp_path / "a.csv"), "label": "ill"}, sites=4))

    assert any("split as samples of different patients" in note for note in federation.notes)
