"""A coordinator counts who has a value by the sums that scale features and balance classes, or by a difference of two.

The attacker writes any plan, asks in as many runs as it likes, sees all that leaves, and knows of a hospital's patients
everything but who of them has the value. On the sums of before it read each of these counts exactly.
"""

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest

from fedsmall.clients.telling import rows_to_tell
from fedsmall.data.preparation import tellable
from fedsmall.data.sources.pool import digests_of
from fedsmall.parts import Recipe
from fedsmall.planning.run_sheet import CLASSES, SUMS, TELL
from fedsmall.planning.tasks import load_site
from tests.clients.test_data_process import AS_IT_IS, DataProcess, config, plan
from tests.clients.test_told_sums import guard_in

ILL = {"label": "ill", "classes": ["no", "yes"]}
STATUS = ["positive", "negative", "unknown"]
FLOOR = 8


def hospital(folder, rare):
    """60 patients, of whom as many as ``rare`` have a value that nobody else has, in several columns."""
    is_rare, rows = np.arange(60) < 2 * rare, []
    for k in range(60):
        has = is_rare[k] and k % 2 == 0
        cells = ("positive" if has else ("negative", "unknown")[k % 2], int(has), 7 if has else k % 2, "" if has else k)
        rows.append(",".join(map(str, (*cells, k * 7 % 31, 99 if has else k % 13, "yes" if k % 4 < 2 else "no"))))
    (folder := folder / str(rare)).mkdir()
    (folder / "essen.csv").write_text("\n".join(["status,flag,grade,lab,age,code,ill", *rows]))
    (folder / "policy.toml").write_text(AS_IT_IS)
    return DataProcess("essen", folder / "essen.csv", folder / "home", folder / "policy.toml")


RUNS = itertools.count()


def told(site, task, tell=(SUMS,)):
    recipe = Recipe(lr=0.05, class_weights="balanced" if CLASSES in tell else None)
    asked = plan(name="FedAvg").model_copy(update={"task": {"csv": "x.csv", **task}, "recipe": recipe})
    words, sums = site.answer("roll", config(asked, run=f"r{next(RUNS)}", **{TELL: list(tell)}), {})
    assert "error" not in words, words
    return {name: values.tolist() for name, values in sums.items()}


QUESTIONS = {
    "a column of 0 and 1": {**ILL, "features": ["flag"]},
    "a value beside two": {**ILL, "features": ["grade"]},
    "a value of a category": {**ILL, "features": ["status"], "categorical": {"status": STATUS}},
    "all other values of a category": {**ILL, "features": ["status"], "categorical": {"status": STATUS[1:]}},
    "cells without a value": {**ILL, "features": ["lab"]},
    "a class": {"label": "status", "classes": STATUS, "features": ["age"]},
}


@pytest.mark.parametrize("asked", QUESTIONS)
def test_no_sum_tells_how_many_have_a_value_of_few(tmp_path, asked):
    tell = (CLASSES,) if asked == "a class" else (SUMS,)

    answers = [told(hospital(tmp_path, rare), QUESTIONS[asked], tell) for rare in (2, 4, 6, 8)]

    counts = [{name: values for name, values in each.items() if name.endswith("count")} for each in answers]
    assert all(each == counts[0] for each in counts)
    if asked != "cells without a value":  # whose sum is of others, who are many
        assert all(each == answers[0] for each in answers)


def test_values_of_many_are_told_exactly(tmp_path):
    site = hospital(tmp_path, 24)
    task = QUESTIONS["a column of 0 and 1"]

    sums = told(site, task)

    train = load_site(plan().model_copy(update={"task": {"csv": "x.csv", **task}}), "essen", site.data).train
    assert sums["sums/count"] == [len(train)]
    assert sums["sums/total"] == [train.x.sum()]


def test_classes_are_told_of_in_one_grouping(tmp_path):
    """By {negative | unknown, positive} and {negative, positive | unknown} the positive ones are known."""
    site = hospital(tmp_path, 4)

    def counts(**classes):
        return told(site, {"label": "status", "classes": classes, "features": ["age"]}, (CLASSES,))["classes/total"]

    first = counts(a=["negative"], b=["unknown", "positive"])
    again = counts(c=["unknown", "positive"], d=["negative"])
    other = counts(a=["negative", "positive"], b=["unknown"])

    assert sum(first) > 40
    assert sum(again) == sum(first)
    assert other == [0, 0]


GRADE = {
    "number": ({**ILL, "features": ["grade"]}, SUMS, "sums/count"),
    "category": ({**ILL, "features": ["grade"], "categorical": {"grade": ["0", "1", "7"]}}, SUMS, "sums/count"),
    "classes": ({"label": "grade", "classes": ["0", "1", "7"], "features": ["age"]}, CLASSES, "classes/count"),
}


@pytest.mark.parametrize(("first", "then"), list(itertools.permutations(GRADE, 2)))
def test_a_column_is_told_of_as_a_number_by_its_values_or_by_classes(tmp_path, first, then):
    """By two of these the patients who have other values than most are known."""
    site = hospital(tmp_path, 30)

    (asked, what, name), (also, of, other) = GRADE[first], GRADE[then]

    assert all(told(site, asked, (what,))[name])
    assert not any(told(site, also, (of,))[other])
    assert all(told(site, asked, (what,))[name])


@pytest.mark.parametrize("more", [{"features": ["age", "code", "flag"]}, {"decimal": ","}, {"missing": ["3"]}])
def test_a_patient_is_known_whatever_a_plan_takes_of_the_row(tmp_path, more):
    """By other features all patients were new, though those held out differ by two from those of before."""
    site = hospital(tmp_path, 4)
    task = {"csv": "x.csv", **ILL, "features": ["age", "code"]}
    asked = [plan().model_copy(update={"task": {**task, **also}, "test": t}) for also, t in (({}, 0.5), (more, 0.53))]
    first, other = (load_site(each, "essen", site.data).held_out for each in asked)

    memory, forgetful = guard_in(tmp_path / "known"), guard_in(tmp_path / "by content")
    known = [rows_to_tell(memory, part, FLOOR) for part in (first, other)]
    by_content = [rows_to_tell(forgetful, replace(part, digests=None), FLOOR) for part in (first, other)]

    assert 0 < len(set(other.digests) - set(first.digests)) < FLOOR
    assert (len(by_content[1]) == len(other)) == ("features" in more)
    assert len(known[0]) == len(first)
    assert len(known[1]) in (0, len(first))


def test_equal_texts_have_one_digest_and_a_name_in_another_encoding_has_its_own():
    made = digests_of(["p1", os.fsdecode(b"pr\xfcf"), "p1", "prüf"])

    assert [len(set(made)), made[0] == made[2], len(digests_of([]))] == [3, True, 0]


@pytest.mark.parametrize("floor", [2, 5, 8])
@pytest.mark.parametrize("per_patient", [1, 3])
def test_no_value_that_can_be_solved_for_is_of_few(floor, per_patient):
    """Of columns of at most four values and of categories: of each, its zeros, and those left over by what is told."""
    names = ("age", "flag", "grade", "stage=1", "stage=2", "stage=3")
    rng = np.random.default_rng(floor)
    for n in (1, 2, 3, 9, 20, 60, 200):
        patients = np.sort(rng.permutation(n)) // per_patient
        stage = rng.choice(4, n, p=[0.05, 0.7, 0.2, 0.05])  # 0: one that the plan does not list
        grade = rng.choice(4, n, p=[0.6, 0.3, 0.08, 0.02])
        x = np.column_stack([rng.normal(size=n), rng.random(n) < 0.1, grade, *(stage == level for level in (1, 2, 3))])
        x[rng.random(n) < 0.08, 0] = np.nan

        values, is_told = tellable(x, names, floor, patients if per_patient > 1 else None)

        def many(rows, whose=patients, least=floor):
            return (count := len(np.unique(whose[rows]))) == 0 or count >= least

        for k in np.flatnonzero(is_told):
            present = ~np.isnan(values[:, k])
            assert many(present)
            assert many(~present)
            for value in np.unique(values[present, k]) if len(np.unique(values[present, k])) <= 4 else ():
                assert many(values[:, k] == value)
        levels = [k for k in (3, 4, 5) if is_told[k]]
        assert many(x[:, levels].sum(axis=1) == 0) or not levels
        assert np.isnan(values[:, ~is_told]).all()
