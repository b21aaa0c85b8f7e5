"""From an unknown table to a scenario that runs: what `fedsmall new` decides, and what it says is wrong."""

import json
import os
import re
import subprocess
import sys
import tomllib
from time import process_time

import numpy as np
import pandas
import pytest
from PIL import Image

from fedsmall.planning.look import candidates, look_at, read_tables
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.runs.scenario import build, load
from tests.fedsmall.data.pictures.test_files import dicom
from tests.sim.cli.spoiled import TABLES, spoil

WITHIN = 0.01  # of what a regression on pooled rows comes to on the same test patients
FARTHER = 0.05  # of how wrong probabilities are: a loss in nats, or an integrated Brier score
MARKS = dict.fromkeys(["few", "wine"], pytest.mark.thorough)
ALL_TABLES = [pytest.param(name, marks=MARKS.get(name, pytest.mark.slow)) for name in TABLES]


def write(path, header, rows):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))


def scenario_of(path):
    return tomllib.loads(path.read_text(encoding="utf-8"))


def pooled_worth(path, rows, metric):
    """What a regression on pooled rows is worth by seed: the run's own of classes, others' programs of other tasks."""
    if metric == "auc":
        return [row["pooled"]["common"]["auc"] for row in rows if "pooled" in row]
    plans = {plan.seed: plan for plan in load(path).plans()}
    return [regression_worth(build_federation(plans[seed]), metric) for seed in sorted({row["seed"] for row in rows})]


def regression_worth(federation, metric):
    x, y = (np.concatenate([getattr(site, of) for site in federation.train]) for of in ("x", "y"))
    test = federation.test
    if metric == "r2":
        from sklearn.linear_model import RidgeCV

        return RidgeCV(np.logspace(-2, 3, 11)).fit(x, y.ravel()).score(test.x, test.y.ravel())
    linear_model = pytest.importorskip("sksurv.linear_model")
    as_times = [("event", bool), ("time", float)]
    times = [np.array([(event, time) for _, _, time, event in of], dtype=as_times) for of in (y, test.y)]
    return linear_model.CoxPHSurvivalAnalysis(alpha=1.0).fit(x, times[0]).score(test.x, times[1])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALL_TABLES)
def test_three_commands_make_of_a_messy_table_a_report_as_good_as_a_pooled_regression(
    fedsmall, tmp_path, request, name
):
    spoiled = TABLES[name]
    spoil(name, tmp_path / "patients.csv", request.getfixturevalue("data_root") if spoiled.is_real else None)

    ended = [fedsmall("new", "patients.csv", *spoiled.words, "--out", "mine.toml")]
    seeds = "seeds=[0]" if name in MARKS else "seeds=[0, 1, 2, 3]"
    ended += [fedsmall("run", "mine.toml", "--set", seeds, "--processes", 1)]
    new_rows = next((tmp_path / "patients.csv").glob("*")) if spoiled.files else "patients.csv"
    ended += [fedsmall("predict", "runs/mine", new_rows)]

    assert [(code, said) for code, _, said in ended if code] == []
    page = (tmp_path / "runs/mine/report.html").read_text()
    assert "What is in the data" in page
    assert "nan" not in re.findall(r">(\w+)</td>", page)
    rows = json.loads((tmp_path / "runs/mine/summary.json").read_text())
    pooled = np.mean(pooled_worth(tmp_path / "mine.toml", rows, spoiled.metric))
    for method in ("Ridge", "FedDC"):
        own = np.mean([row["common"][spoiled.metric] for row in rows if row["method"] == method])
        assert own > pooled - WITHIN, (method, own, pooled)
    by_method = {row["label"]: row["common"] for row in rows if row["common"]}
    proper = "ibs" if spoiled.metric == "c_index" else "loss"  # the two models' likelihoods of times differ
    assert by_method["FedDC"][proper] < by_method["Ridge"][proper] + FARTHER, (proper, by_method)


def test_the_last_table_becomes_a_scenario_that_says_what_each_column_is(fedsmall, tmp_path):
    spoil("all at once", tmp_path / "patients.csv")

    code, said, complained = fedsmall("new", "patients.csv", "--label", "outcome")
    scenario = scenario_of(tmp_path / "mine.toml")

    assert (code, complained) == (0, "")
    assert scenario["task"]["decimal"] == ","
    assert scenario["task"]["classes"] == {"well": ["WELL"], "ill": ["ILL"]}
    assert set(scenario["task"]["drop"]) == {"admitted", "case_id", "country", "remark"}
    assert scenario["task"]["categorical"] == {"smoker": ["früher", "nie"]}
    assert {"-999", "9999", "unknown"} == set(scenario["task"]["missing"])
    assert scenario["partition"] == {"natural": "hospital"}
    assert "positive is ill, the rarer" in said


def test_patients_at_several_hospitals_are_refused_with_two_cures_that_work(fedsmall, tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        (f"P{k // 2}", "ab"[k % 2], round(rng.normal(), 2), "ill" if rng.random() < 0.5 else "well") for k in range(80)
    ]
    write(tmp_path / "patients.csv", "pid,centre,crp,outcome", rows)
    words = ("new", "patients.csv", "--label", "outcome")

    code, _, complaint = fedsmall(*words)
    ended = [
        fedsmall(*words, "--site", "", "--out", "dealt.toml"),
        fedsmall(*words, "--patient", "", "--out", "kept.toml"),
    ]

    assert (code, [done[0] for done in ended]) == (2, [0, 0])
    assert "40 of the patients in column 'pid' have rows at more than one site" in complaint
    dealt, kept = (scenario_of(tmp_path / f"{name}.toml") for name in ("dealt", "kept"))
    assert (dealt["task"]["patient"], "partition" in dealt) == ("pid", False)
    assert (kept["task"].get("patient"), kept["partition"]) == (None, {"natural": "centre"})


def test_a_single_minus_999_among_plain_values_stands_for_none(tmp_path):
    write(tmp_path / "patients.csv", "hb,score,outcome", [(13.5 + k / 10, -k, k % 2) for k in range(30)])
    with (tmp_path / "patients.csv").open("a") as file:
        file.write("\n-999,-99,1")
    look = look_at(*read_tables(tmp_path / "patients.csv"), ("outcome",), None, None)

    assert look.missing == ("-999",)  # -99 may be a score here


def test_a_number_is_predicted_as_one_and_a_time_with_its_event(fedsmall, tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{a:.2f}", f"{b:.2f}", f"{10 + 3 * a:.2f}", n % 2) for n, (a, b) in enumerate(rng.normal(size=(80, 2)))]
    write(tmp_path / "patients.csv", "a,b,months,died", [(*row[:2], abs(float(row[2])), row[3]) for row in rows])

    assert fedsmall("new", "patients.csv", "--label", "months", "--out", "number.toml")[0] == 0
    assert fedsmall("new", "patients.csv", "--time", "months", "--event", "died", "--out", "time.toml")[0] == 0

    assert scenario_of(tmp_path / "number.toml")["task"]["target"] == "months"
    assert scenario_of(tmp_path / "time.toml")["task"] == {"csv": "patients.csv", "time": "months", "event": "died"}


@pytest.mark.parametrize("column", ["site", "file", "Hospital"])
def test_hospitals_in_a_column_of_any_name_are_the_sites(fedsmall, tmp_path, column):
    rows = [[40 + n % 37, 1 + n % 3, n % 2] for n in range(90)]
    write(tmp_path / "patients.csv", f"age,{column},ill", rows)

    assert fedsmall("new", "patients.csv", "--label", "ill", "--site", column)[0] == 0
    assert build_federation(load(tmp_path / "mine.toml").plans()[0]).names == ("1", "2", "3")


@pytest.mark.parametrize("words", [("--label", "ill"), ("--label", "dose"), ("--time", "dose", "--event", "ill")])
def test_rows_without_an_outcome_are_left_out_as_if_they_had_not_been_there(fedsmall, tmp_path, words):
    rows = [(30 + 7 * k % 23, f"{k * k % 17 + 0.5}", k % 3 % 2, k % 11) for k in range(60)]
    gone = [(40, "", "", 3), (41, "NA", "k.A.", 4), (42, "?", "", 5)]
    for name, held in (("whole", rows), ("gaps", [*rows[:20], gone[0], *rows[20:], *gone[1:]])):
        write(tmp_path / f"{name}.csv", "age,dose,ill,marker", held)
        assert fedsmall("new", f"{name}.csv", *words, "--out", f"{name}.toml")[0] == 0

    whole, gaps = (scenario_of(tmp_path / f"{name}.toml") for name in ("whole", "gaps"))
    assert gaps["task"].pop("drop_unlabelled") is True
    assert {**gaps, "name": "", "task": 0} == {**whole, "name": "", "task": 0}
    assert {**gaps["task"], "csv": ""} == {**whole["task"], "csv": ""}
    of_whole, of_gaps = (build_federation(load(tmp_path / f"{name}.toml").plans()[0]) for name in ("whole", "gaps"))
    for one, other in zip([*of_whole.train, of_whole.test], [*of_gaps.train, of_gaps.test], strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert "Rows without an outcome, left out: 3 of 63" in of_gaps.notes


@pytest.mark.parametrize(("every", "is_said"), [(3, False), (9, True), (99, True)])
def test_events_in_words_are_events_and_few_are_said(fedsmall, tmp_path, every, is_said):
    rng = np.random.default_rng(0)
    rows = [(f"{rng.normal():.3f}", f"{rng.exponential():.3f}", "Alive" if n % every else "Dead") for n in range(1, 80)]
    write(tmp_path / "patients.csv", "marker,time,status", rows)

    code, said, complained = fedsmall("new", "patients.csv", "--time", "time", "--event", "status")

    assert (code, complained) == (0, "")
    assert (f"{79 // every} patients with the event for 1 column," in " ".join(said.split())) == is_said


@pytest.mark.parametrize(("numbers", "predicted"), [(10, "classes"), (11, "target")])
def test_more_than_ten_whole_numbers_are_a_number_and_fewer_are_classes_by_size(fedsmall, tmp_path, numbers, predicted):
    write(tmp_path / "days.csv", "age,days", [[40 + row % 7, 3 + row % numbers] for row in range(40)])

    fedsmall("new", "days.csv", "--label", "days", "--out", "mine.toml")

    task = scenario_of(tmp_path / "mine.toml")["task"]
    assert predicted in task
    assert task.get("classes", list(map(str, range(3, 13)))) == list(map(str, range(3, 13)))


def test_the_positive_class_is_the_rarer_unless_asked(fedsmall, tmp_path):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n % 31, "well" if n % 3 else "ill") for n in range(90)])

    fedsmall("new", "patients.csv", "--label", "outcome")
    fedsmall("new", "patients.csv", "--label", "outcome", "--positive", "well", "--out", "other.toml")

    assert scenario_of(tmp_path / "mine.toml")["task"]["classes"] == ["well", "ill"]
    assert scenario_of(tmp_path / "other.toml")["task"]["classes"] == ["ill", "well"]


@pytest.mark.parametrize(
    ("no", "yes"),
    [
        *(("no", "yes"), ("0", "1"), ("False", "TRUE"), ("nein", "Ja"), ("neg", "Pos")),
        *(("benign", "Malignant"), ("alive", "dead"), ("control", "case"), ("HER2-", "HER2+")),
    ],
)
def test_what_says_yes_is_positive_however_common(fedsmall, tmp_path, no, yes):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n % 31, yes if n % 3 else no) for n in range(90)])

    _, said, _ = fedsmall("new", "patients.csv", "--label", "outcome")

    scenario = scenario_of(tmp_path / "mine.toml")
    assert f"positive is {yes}, as its name says" in said
    assert list(scenario["task"]["classes"]) == [no, yes]
    assert scenario["threshold"] == "youden"


def test_of_one_and_two_the_rarer_is_positive(fedsmall, tmp_path):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n % 31, 2 - (n % 3 > 0)) for n in range(90)])

    fedsmall("new", "patients.csv", "--label", "outcome")

    assert scenario_of(tmp_path / "mine.toml")["task"]["classes"] == ["1", "2"]


def test_values_that_two_hospitals_spell_differently_are_named(fedsmall, tmp_path):
    (tmp_path / "wards").mkdir()
    for name, words in (("bonn", ("Yes", "No")), ("ulm", ("yes", "No"))):
        write(
            tmp_path / "wards" / f"{name}.csv", "age,smoker,ill", [(40 + n, words[n % 3 > 0], n % 2) for n in range(30)]
        )

    code, said, _ = fedsmall("new", "wards", "--label", "ill")

    assert code == 0
    assert "- smoker has Yes and yes as values apart: write them alike" in said


@pytest.mark.parametrize(("bonn", "ulm", "is_left_out"), [(4, 4, True), (5, 0, False), (4, 30, False)])
def test_a_column_that_no_hospital_could_scale_is_left_out_and_named(fedsmall, tmp_path, bonn, ulm, is_left_out):
    rows = [
        (place, 40 + n, 9000 + 1000 * n if n < count else "", n % 2)
        for place, count in (("bonn", bonn), ("ulm", ulm))
        for n in range(30)
    ]
    write(tmp_path / "patients.csv", "hospital,age,troponin,ill", rows)

    code, said, _ = fedsmall("new", "patients.csv", "--label", "ill")

    assert code == 0
    why = "left out (no hospital has 5 values, by which a column is scaled): troponin"
    assert (why in said) == is_left_out
    assert scenario_of(tmp_path / "mine.toml")["task"].get("drop", []) == ["troponin"] * is_left_out


def test_of_hospitals_that_could_scale_nothing_no_column_is_left_out_for_a_gap(fedsmall, tmp_path):
    rows = [(place, 40 + n, "" if n else 7 + k, n % 2) for k, place in enumerate("abcdef") for n in range(4)]
    write(tmp_path / "patients.csv", "hospital,age,troponin,ill", rows)

    assert fedsmall("new", "patients.csv", "--label", "ill")[0] == 0
    assert "drop" not in scenario_of(tmp_path / "mine.toml")["task"]


def test_columns_that_not_every_hospital_has_are_left_out_and_named(fedsmall, tmp_path):
    (tmp_path / "wards").mkdir()
    for name, columns in (("bonn", "age,Dose,ill"), ("ulm", "age,dose,ill,ward"), ("graz", "ill,age,dose")):
        fields = columns.split(",")
        rows = [{"age": 40 + n, "ill": n % 2, "ward": "a", "dose": n % 11, "Dose": n % 11} for n in range(30)]
        write(tmp_path / "wards" / f"{name}.csv", columns, [[row[field] for field in fields] for row in rows])

    code, said, _ = fedsmall("new", "wards", "--label", "ill")
    absent = fedsmall("new", "wards", "--label", "ward", "--out", "other.toml")

    assert code == 0
    assert "left out (not at every hospital; what is the same has one name at all): Dose, dose, ward" in said
    assert scenario_of(tmp_path / "mine.toml")["task"]["drop"] == ["Dose", "dose", "ward"]
    assert fedsmall("run", "mine.toml", "--set", "rounds=2", "--set", "seeds=[0]")[0] == 0
    assert absent[::2] == (2, "fedsmall: there is no column 'ward' at every hospital. Known: age, ill\n")


def test_a_column_that_names_the_hospital_of_each_file_is_no_feature(fedsmall, tmp_path):
    (tmp_path / "wards").mkdir()
    for place, name in enumerate(("bonn", "ulm", "graz")):
        rows = [[40 + n, name, place, 3 if place else n % 2, n % 2] for n in range(30)]
        write(tmp_path / "wards" / f"{name}.csv", "age,clinic,number,dose,ill", rows)

    assert fedsmall("new", "wards", "--label", "ill")[0] == 0
    assert scenario_of(tmp_path / "mine.toml")["task"]["drop"] == ["clinic", "number"]


def test_grades_in_words_begin_with_none_and_are_told_how_to_be_grades(fedsmall, tmp_path):
    grades = ("none", "mild", "severe")
    write(tmp_path / "patients.csv", "age,toxicity", [(40 + n % 31, grades[n % 31 // 12]) for n in range(90)])

    _, said, _ = fedsmall("new", "patients.csv", "--label", "toxicity")

    assert 'where these are grades, list classes in their order, and add loss = "ordinal"' in said
    assert scenario_of(tmp_path / "mine.toml")["task"]["classes"] == ["mild", "none", "severe"]


@pytest.mark.thorough
def test_grades_that_new_takes_for_classes_run_in_their_order_as_it_says(fedsmall, tmp_path):
    write(tmp_path / "patients.csv", "age,grade", [(40 + n % 31, n % 31 // 8) for n in range(90)])

    _, said, _ = fedsmall("new", "patients.csv", "--label", "grade")
    quick = ["--set", 'task.loss="ordinal"', "--set", "seeds=[0]", "--set", "rounds=2", "--processes", "1"]
    code, told, complained = fedsmall("run", "mine.toml", *quick)

    assert 'where these are grades, add loss = "ordinal"; where they are counts, target in place' in said
    assert (code, complained) == (0, "")
    assert "kappa" in told


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["patients.csv"], "--label COLUMN. It may be outcome"),
        (["nothing.csv", "--label", "outcome"], "no file or folder 'nothing.csv'"),
        (["patients.csv", "--label", "outcom"], "no column 'outcom'. Known: age, outcome"),
        (["patients.csv", "--label", "outcome", "--positive", "dead"], "one of two classes"),
        (["patients.csv", "--time", "age"], "--time with --event"),
        (["patients.csv", "--label", "outcome", "--out", "no/where.toml"], "no folder 'no'"),
        (["patients.csv", "--label", "outcome", "--out", "patients.csv"], "not written over"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(fedsmall, tmp_path, words, complaint):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n % 31, n % 2) for n in range(60)])

    code, _, complained = fedsmall("new", *words)

    assert code == 2
    assert complaint in complained
    assert complained.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["patients.csv"]


def notes_of(path, **keys):
    table = {"name": "x", "task": {"csv": str(path), "label": "outcome"}, "rounds": 1, "method": [{"name": "FedAvg"}]}
    return "\n".join(build_federation(build(table | keys).plans()[0]).notes)


def test_what_looks_wrong_is_said(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for n in range(200):
        outcome, site = int(rng.random() < 0.4), "ulm" if n < 100 else "graz"
        glucose = rng.normal(5, 0.5) * (1000 if site == "ulm" else 1)
        sugar = 7 + 0.1 * rng.normal() if outcome else 5 + 0.1 * rng.normal()
        lab = 0 if n % 5 == 0 else 4 + n / 100
        slip = 1700 if n == 7 else 170 + 5 * rng.normal()
        rows.append((f"{glucose:.3f}", f"{sugar:.3f}", f"{slip:.2f}", "" if n % 3 else n % 5, lab, site, outcome))
    twin = [(*rows[0][:5], "graz", rows[0][6])]
    write(tmp_path / "patients.csv", "glucose,hba1c,height,seldom,lab,hospital,outcome", rows + twin)

    notes = notes_of(tmp_path / "patients.csv", partition={"natural": "hospital"})

    assert "glucose is about 10^" in notes
    assert "hba1c alone predicts the outcome" in notes
    assert "height has 1 value far outside" in notes
    assert "seldom is missing in 1" in notes
    assert "rows that stand at several hospitals, the same patients?: 1" in notes
    assert "lab is 0 in 41 rows and 4." in notes


@pytest.mark.parametrize(
    ("factor", "is_said"), [(1, False), (3, False), (10, True), (30, False), (400, True), (1e6, True)]
)
@pytest.mark.parametrize("few", [2, 20])
def test_a_unit_of_another_hospital_is_asked_about_where_it_is_a_power_of_ten_or_far_off(
    tmp_path, few, factor, is_said
):
    rng = np.random.default_rng(0)
    sites = ["ulm"] * 40 + ["graz"] * 40 + ["bonn"] * few
    rows = [
        (f"{rng.normal(140, 4) * (factor if site == 'bonn' else 1):.3f}", site, n % 2) for n, site in enumerate(sites)
    ]
    write(tmp_path / "patients.csv", "sodium,hospital,outcome", rows)

    notes = notes_of(tmp_path / "patients.csv", partition={"natural": "hospital"})

    assert ("at bonn; is its unit another?" in notes) == (is_said and (few > 8 or factor > 100))


def test_of_a_sound_table_nothing_is_said(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{a:.4f}", f"{b:.4f}", n % 2) for n, (a, b) in enumerate(rng.normal(size=(200, 2)))]
    write(tmp_path / "patients.csv", "age,marker,outcome", rows)

    assert notes_of(tmp_path / "patients.csv", sites=4) == ""


@pytest.mark.parametrize(
    ("patient", "hospital"),
    [
        ("PatNr", "Krankenhaus"),
        ("Pat.-ID", "Klinik"),
        ("N° patient", "Hôpital"),
        ("paziente", "Ospedale"),
        ("Patiente", "Établissement"),
        ("paciente", "Centro"),
        ("ID", "Spital"),
        ("USUBJID", "SITEID"),
        ("pidnum", "centre"),
        ("record_id", "redcap_data_access_group"),
    ],
)
def test_patients_and_hospitals_are_found_in_other_languages(tmp_path, patient, hospital):
    rows = [(1000 + n // 2, "AB"[n % 20 > 9], n % 31, n % 2) for n in range(80)]
    write(tmp_path / "patients.csv", f"{patient},{hospital},marker,outcome", rows)
    tables, decimal = read_tables(tmp_path / "patients.csv")

    found = look_at(tables, decimal, ("outcome",), None, None)

    assert (found.patient, found.site_column, found.numeric) == (patient, hospital, ("marker",))


@pytest.mark.parametrize("word", ["unknown", "unbekannt", "fehlt", "inconnue", "Desconocido", "sconosciuto"])
def test_no_value_is_one_in_other_languages(tmp_path, word):
    rows = [(n % 31, word if n % 9 == 0 else "ab"[n % 4 > 1], n % 2) for n in range(80)]
    write(tmp_path / "patients.csv", "marker,smokes,outcome", rows)
    tables, decimal = read_tables(tmp_path / "patients.csv")

    found = look_at(tables, decimal, ("outcome",), None, None)

    assert (found.missing, found.categorical) == ((word,), ("smokes",))


@pytest.mark.parametrize("cell", ["{:,}", "{} mg/l", "<{}", "{}'000"])
def test_a_column_of_numbers_with_marks_is_no_identifier_and_says_why_it_is_left_out(tmp_path, cell):
    rows = [f'"{cell.format(7919 * n)}",{n % 7},P{n:03}-{n * n},{n % 2}' for n in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["platelets,marker,code,outcome", *rows]))
    tables, decimal = read_tables(tmp_path / "patients.csv")

    left_out = look_at(tables, decimal, ["outcome"], None, None).drop

    assert (left_out["platelets"].split(":")[0], left_out["code"]) == (
        "numbers with a unit or thousands marks",
        "an identifier",
    )


@pytest.mark.parametrize(
    ("outcomes", "ages", "classes", "missing"),
    [
        ("well|ill|Unknown|[Not Available]", "50|61|42|33|35", ["well", "ill"], {"Unknown", "[Not Available]"}),
        ("well|ill|999", "50|61|42|33|35", ["well", "ill"], {"999"}),
        ("0|1|-9", "50|61|42|33|-9", ["0", "1"], {"-9"}),
        ("-1|1", "50|61|42|33|-1", ["-1", "1"], set()),  # a class, whatever it stands for in another column
        ("low|high", "50|61|42|33|35", ["low", "high"], set()),
        ("done|not done", "50|61|42|33|35", ["done", "not done"], set()),
    ],
)
def test_what_stands_for_no_outcome_is_no_class_and_a_class_does_not_stand_for_no_value(
    fedsmall, tmp_path, outcomes, ages, classes, missing
):
    words, years = outcomes.split("|"), ages.split("|")
    rows = [(years[n % 5], n % 13, words[n % 17 % len(words)]) for n in range(90)]
    write(tmp_path / "patients.csv", "age,marker,outcome", rows)

    code, said, complained = fedsmall("new", "patients.csv", "--label", "outcome")

    assert (code, complained) == (0, "")
    task = scenario_of(tmp_path / "mine.toml")["task"]
    assert (set(task["classes"]), set(task.get("missing", ()))) == (set(classes), missing)
    assert ("are read as values: -1" in said) == ("-1" in words)
    assert task.get("drop_unlabelled", False) is bool(missing)


def test_a_word_among_numbers_is_not_left_out_of_a_category(fedsmall, tmp_path):
    rows = [(n % 19 if n % 9 else "high", ("low", "mid", "high")[n % 3], n % 2) for n in range(90)]
    write(tmp_path / "patients.csv", "crp,risk,outcome", rows)

    code, _, complained = fedsmall("new", "patients.csv", "--label", "outcome")

    assert code == 2
    assert "text where numbers are expected, in column 'crp' (10 of 90 rows)" in complained


def test_remarks_above_a_header_and_codes_with_words_are_read_as_cbioportal_writes_them(fedsmall, tmp_path):
    rng = np.random.default_rng(0)
    lines = ["#Patient\tAge\tMonths\tStatus\tType", "#of whom\tyears\tmonths\tstatus\ttype", "#1\t1\t1\t1\t1"]
    lines += ["PATIENT_ID\tAGE\tOS_MONTHS\tOS_STATUS\tSUBTYPE"]
    for n, months in enumerate(rng.exponential(20, 80)):
        died, kind = ("1:DECEASED", "0:LIVING")[n % 2], ("A", "B", "[Not Available]")[n % 3]
        lines.append(f"TCGA-{n:04}\t{rng.normal(60, 8):.1f}\t{months:.2f}\t{died}\t{kind}")
    (tmp_path / "data_clinical.txt").write_text("\n".join(lines))

    code, _, complained = fedsmall("new", "data_clinical.txt", "--time", "OS_MONTHS", "--event", "OS_STATUS")

    assert (code, complained) == (0, "")
    task = scenario_of(tmp_path / "mine.toml")["task"]
    assert task["categorical"] == {"SUBTYPE": ["A", "B"]}
    assert (task["drop"], task["missing"]) == (["PATIENT_ID"], ["[Not Available]"])
    events = build_federation(load(tmp_path / "mine.toml").plans()[0]).train
    assert {value for part in events for value in part.y[:, 1].tolist()} == {0, 1}


def test_a_first_line_that_begins_with_a_number_sign_is_a_header(tmp_path):
    write(tmp_path / "patients.csv", "#,marker,outcome", [(n, n % 7, n % 2) for n in range(9)])

    assert list(read_tables(tmp_path / "patients.csv")[0][""]) == ["#", "marker", "outcome"]


def test_of_several_sheets_the_one_that_is_named_becomes_the_scenario(fedsmall, tmp_path):
    pytest.importorskip("openpyxl")
    with pandas.ExcelWriter(tmp_path / "patients.xlsx") as book:
        pandas.DataFrame({"marker": [3, 1, 2] * 20, "outcome": [0, 1] * 30}).to_excel(
            book, sheet_name="2024", index=False
        )
        pandas.DataFrame({"code": [0, 1], "meaning": ["well", "ill"]}).to_excel(book, sheet_name="key", index=False)

    code, _, complained = fedsmall("new", "patients.xlsx", "--label", "outcome")
    again = fedsmall("new", "patients.xlsx", "--label", "outcome", "--sheet", "2024")

    assert (code, "sheet = ... in a task, or --sheet" in complained) == (2, True)
    assert (again[0], scenario_of(tmp_path / "mine.toml")["task"]["sheet"]) == (0, "2024")


def test_of_a_ward_and_a_hospital_the_hospital_is_the_site(tmp_path):
    rows = [("AB"[n % 2], n % 3, n % 7, n % 2) for n in range(90)]
    write(tmp_path / "patients.csv", "ward,hospital,marker,outcome", rows)
    tables, decimal = read_tables(tmp_path / "patients.csv")

    assert look_at(tables, decimal, ("outcome",), None, None).site_column == "hospital"


def test_the_time_to_look_at_a_column_does_not_grow_with_the_square_of_its_values():
    def seconds(rows):
        table = pandas.DataFrame({"code": [f"P{n:06}" for n in range(rows)], "outcome": ["0", "1"] * (rows // 2)})
        table["marker"] = [f"{n * 7919 % 10007 / 7:.4f}" for n in range(rows)]
        begun = process_time()
        assert look_at({"": table}, ".", ["outcome"], None, None).numeric == ("marker",)
        return process_time() - begun

    few, many = (min(seconds(rows) for _ in range(3)) for rows in (1000, 16_000))

    assert many < 32 * few  # by rows 16 times, by their square 256


def test_a_code_is_a_value_where_other_values_are_near_it(tmp_path):
    rows = [(change, weight, n % 2) for n, (change, weight) in enumerate([(-9, 70), (-8, -9), (3, 80), (-9, -9)] * 10)]
    write(tmp_path / "patients.csv", "change,weight,outcome", rows)
    tables, decimal = read_tables(tmp_path / "patients.csv")

    assert look_at(tables, decimal, ["outcome"], None, None).missing == ()  # it would empty the other column, too


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_table_of_a_few_rows_is_looked_at(tmp_path, rows):
    write(tmp_path / "patients.csv", "age,outcome", [(40 + n, n % 2) for n in range(rows)])
    tables, _ = read_tables(tmp_path / "patients.csv")

    assert candidates(tables[""]) == (["outcome", "age"] if rows > 1 else [])


@pytest.mark.parametrize(
    ("columns", "classes", "first"), [(500, 2, "StandaloneRidge"), (501, 2, "Standalone"), (167, 3, "Standalone")]
)
def test_a_table_of_many_columns_gets_no_regression_that_would_take_long(fedsmall, tmp_path, columns, classes, first):
    rng = np.random.default_rng(0)
    rows = [(n % classes, *rng.normal(size=columns).round(2)) for n in range(40)]
    write(tmp_path / "genes.csv", ",".join(["outcome", *(f"gene {k}" for k in range(columns))]), rows)

    assert fedsmall("new", "genes.csv", "--label", "outcome")[0] == 0

    assert next(of["name"] for of in scenario_of(tmp_path / "mine.toml")["method"]) == first


def draw(folder, sizes=(8, 8), hospitals=("",), of=(3, 8), colour=False):
    """Digits as files: "well" and the rarer "ill" in folders, in those of hospitals where these have names."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits, rng = load_digits(), np.random.default_rng(0)
    at = [k for k in np.flatnonzero(np.isin(digits.target, of)) if digits.target[k] == of[0] or k % 3 == 0]
    for place, k in enumerate(at):
        home = folder / hospitals[place % len(hospitals)] / ("well" if digits.target[k] == of[0] else "ill")
        home.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((digits.images[k] * 15.9).astype(np.uint8))
        side = int(rng.integers(sizes[0], sizes[1] + 1))
        image = (image.convert("RGB") if colour else image).resize((side, side))
        image.save(home / f"{k}.{'png' if k % 2 else 'bmp'}")


@pytest.mark.thorough
@pytest.mark.parametrize("hospitals", [("",), ("bonn", "essen", "graz")])
def test_three_commands_make_of_images_a_report_as_good_as_a_regression_on_their_pixels(fedsmall, tmp_path, hospitals):
    draw(tmp_path / "scans", hospitals=hospitals)
    (tmp_path / "scans" / "notes.txt").write_text("no image")

    ended = [fedsmall("new", "scans"), fedsmall("run", "mine.toml", "--set", "seeds=[0]", "--processes", 1)]

    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "positive is ill, the rarer" in ended[0][1]
    rows = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())
    pooled = [row["pooled"]["common"]["auc"] for row in rows if "pooled" in row]
    assert len(pooled) == 1
    worth = {row["label"]: row["common"]["auc"] for row in rows if row["common"]}
    assert worth["FedAvg"] > pooled[0] - WITHIN
    assert worth["FedDC"] > pooled[0] - WITHIN


def test_a_picture_beside_tables_does_not_make_them_images(fedsmall, tmp_path):
    spoil("few", tmp_path / "a.csv")
    (tmp_path / "hospitals").mkdir()
    (tmp_path / "a.csv").rename(tmp_path / "hospitals" / "essen.csv")
    (tmp_path / "hospitals" / "logo.png").write_bytes(b"\x89PNG")

    code, _, complained = fedsmall("new", "hospitals", "--label", "outcome")

    assert (code, complained) == (0, "")
    assert "csv" in scenario_of(tmp_path / "mine.toml")["task"]


def test_a_folder_of_nothing_that_is_read_says_what_is(fedsmall, tmp_path):
    (tmp_path / "scans" / "ill").mkdir(parents=True)
    (tmp_path / "scans" / "ill" / "1.webp").write_bytes(b"RIFF")

    code, _, complained = fedsmall("new", "scans")

    assert code == 2
    assert "the folder holds no table (.csv, " in complained
    assert "and no image (.png, .jpg, " in complained


def test_images_of_several_sizes_and_in_colour_are_brought_to_one(fedsmall, tmp_path):
    draw(tmp_path / "scans", sizes=(40, 60), colour=True)
    for name in ("1.webp", "2.WEBP", "notes.txt", "._1.png"):
        (tmp_path / "scans" / "ill" / name).write_bytes(b"RIFF")

    code, said, _ = fedsmall("new", "scans", "--positive", "well")

    task = scenario_of(tmp_path / "mine.toml")["task"]
    assert code == 0
    assert "brought to 32 x 32" in said
    assert re.findall(r"- (.* left out)", said) == [".webp images are not read: 2 left out"]
    assert task == {"images": "scans", "classes": ["ill", "well"], "size": [32, 32], "channels": 3}


@pytest.mark.parametrize(
    ("words", "spoiled", "complaint"),
    [
        (["--label", "state"], None, "folders name their classes"),
        (["--positive", "sick"], None, "well, ill"),
        ([], "1.png", "a folder for each class"),
        ([], "well/junk.png", "well/junk.png: a file with the ending"),
        ([], "well/more/1.png", "well/more/1.png does not"),
        ([], "train/well/.1.png", "hold no image"),
        ([], "well/scan.dcm", "well/scan.dcm: a file with the ending of DICOM"),
        ([], "well/scan.nii.gz", "docs/images.md"),
    ],
)
def test_images_that_are_no_scenario_are_refused_in_one_line(fedsmall, tmp_path, words, spoiled, complaint):
    draw(tmp_path / "scans")
    if spoiled is not None:
        (tmp_path / "scans" / spoiled).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "scans" / spoiled).write_text("junk")

    code, _, complained = fedsmall("new", "scans", *words)

    assert code == 2
    assert complaint in complained
    assert len(complained.strip().splitlines()) == 1
    assert not (tmp_path / "mine.toml").exists()


def save(path, values):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def noise(k, side=20, top=255, dtype="uint8"):
    return np.random.default_rng(k).integers(0, top, (side, side)).astype(dtype)


@pytest.mark.parametrize(
    ("made", "task"),
    [
        ({"{}/{}.png": noise}, {}),
        ({"{}/{}.png": noise, "{}/._{}.png": None, "__MACOSX/{}/{}.png": noise}, {}),  # what a Mac leaves
        ({"{}/{}.png": lambda k: noise(k, side=3 if k == 2 else 30)}, {"size": [30, 30]}),  # one thumbnail among scans
        ({"{}/{}.png": lambda k: noise(k, side=5)}, {"size": [8, 8]}),  # the network needs as much
        ({"{}/{}.png": lambda k: noise(k, top=4096, dtype="uint16")}, {"range": (0, 4096)}),
        ({"{}/{}.tif": lambda k: noise(k, top=2).astype("float32")}, {"range": (0, 1)}),
        ({"train/{}/{}.png": noise, "test/{}/1{}.png": lambda k: noise(k + 9)}, {"test": "scans/test"}),
    ],
)
def test_folders_of_images_as_they_come_make_a_scenario_that_can_be_built(fedsmall, tmp_path, made, task):
    for number in range(12):
        for name, draw_one in made.items():
            path = tmp_path / "scans" / name.format(("ill", "well")[number % 2], number)
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path, draw_one(number)) if draw_one else path.write_bytes(b"\0\5\26\7")

    code, _, complained = fedsmall("new", "scans")

    assert (code, complained) == (0, "")
    written = scenario_of(tmp_path / "mine.toml")["task"]
    low, high = task.get("range", (0, 0))
    assert written.pop("range", [0, 0]) == pytest.approx([low, high], abs=high / 20)
    folder = "scans/train" if "test" in task else "scans"
    assert written == {"images": folder, "classes": ["ill", "well"]} | {k: v for k, v in task.items() if k != "range"}
    build_federation(load(tmp_path / "mine.toml").plans()[0])


def test_a_class_that_two_hospitals_spell_in_two_ways_is_one(fedsmall, tmp_path):
    for number in range(24):
        home, word = ("bonn", ("Ill", "well")) if number < 12 else ("graz", ("ill", "well"))
        save(tmp_path / "scans" / home / word[number % 2] / f"{number}.png", noise(number))

    code, said, _ = fedsmall("new", "scans")

    assert (code, "2 classes" in said, "as frequent" in " ".join(said.split())) == (0, True, True)
    assert scenario_of(tmp_path / "mine.toml")["task"]["classes"] == {"Ill": ["ill"], "well": []}


def test_folders_of_patients_are_no_classes_and_depths_no_range(fedsmall, tmp_path):
    for number in range(12):
        save(tmp_path / "scans" / ("ill", "well")[number % 2] / f"p{number}" / "1.png", noise(number))
        values = noise(number) if number % 3 else noise(number, top=4096, dtype="uint16")
        save(tmp_path / "depths" / ("ill", "well")[number % 2] / f"{number}.png", values)

    ended = [fedsmall("new", folder) for folder in ("scans", "depths")]

    assert [code for code, _, _ in ended] == [2, 2]
    assert "folder for each patient" in ended[0][2]
    assert "bring all to one depth" in ended[1][2]


def test_dicom_gets_the_range_in_which_its_values_lie(fedsmall, tmp_path):
    for number in range(12):
        dicom(
            tmp_path / "scans" / ("ill", "well")[number % 2] / f"{number}.dcm", noise(number, top=900, dtype="uint16")
        )

    code, _, complained = fedsmall("new", "scans")

    task = scenario_of(tmp_path / "mine.toml")["task"]
    assert (code, complained, set(task)) == (0, "", {"images", "classes", "range"})
    assert task["range"] == pytest.approx([0, 900], abs=20)


def test_events_are_patients_and_years_stay_years(fedsmall, tmp_path):
    rows = [(f"P{p}", 2019 + visit, 40 + p % 30, "ill" if p < 12 else "well") for p in range(40) for visit in range(3)]
    write(tmp_path / "visits.csv", "patient_id,year,age,outcome", rows)

    _, said, _ = fedsmall("new", "visits.csv", "--label", "outcome")

    assert "12 patients of the rarer class for 2 columns, fewer than 10 for each" in said  # they have 36 rows
    assert re.search(r"year +2020 \(0\.82", said)
    assert scenario_of(tmp_path / "mine.toml")["method"][1]["regression"] == {"robust": "patients"}


@pytest.mark.parametrize(
    ("named", "patient"),
    [("P{p:02d}_slice{k}.png", "([^_]+)_"), ("{p}-{k}.png", "([^-]+)-"), ("img_{p:02d}{k}.png", None)],
)
def test_patients_that_names_of_images_say_stay_together(fedsmall, tmp_path, named, patient):
    rng = np.random.default_rng(0)
    for p in range(30):
        for k in range(1 + p % 3):
            file = tmp_path / "scans" / ("ill" if p % 2 else "well") / named.format(p=p, k=k)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 255, (12, 12), dtype=np.uint8)).save(file)

    code, said, _ = fedsmall("new", "scans")

    assert code == 0
    assert scenario_of(tmp_path / "mine.toml")["task"].get("patient") == patient
    assert ("taken for patients" in said) == ("Split by patients" in said) == (patient is not None)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_a_hospital_s_letters_is_written_to(tmp_path, encoding):
    rows = [f"{'Łódź' if n < 40 else 'Étoile'},{n % 31},{n % 2}" for n in range(80)]
    (tmp_path / "patients.csv").write_text("\n".join(["établissement,marker,outcome", *rows]))
    command = "from fedsmall.sim.cli.app import main; main(['new', 'patients.csv', '--label', 'outcome'])"

    words = [sys.executable, "-c", command]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})

    assert (done.returncode, done.stderr) == (0, b"")
    written = "établissement names the hospital".encode(encoding, "backslashreplace")
    assert written in done.stdout
    assert "Łódź".encode(encoding, "backslashreplace") in done.stdout
    assert scenario_of(tmp_path / "mine.toml")["partition"] == {"natural": "établissement"}
