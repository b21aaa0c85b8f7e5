"""``fedsmall describe`` in one process: the table on the screen, its files, and what is refused."""

import csv

import numpy as np
import pandas
import pytest


def scenario(folder, task: str, **more) -> str:
    lines = [f"{key} = {value}" for key, value in {"name": '"who"', "task": task, **more}.items()]
    (folder / "who.toml").write_text("\n".join(lines) + "\n")
    return "who.toml"


def test_a_table_by_class_and_by_site_is_shown_and_written(fedsmall, tmp_path):
    path = scenario(tmp_path, '"breast_cancer"', sites=3, samples_per_site=30)

    code, said, _ = fedsmall("describe", path, "--out", "made")

    assert code == 0
    assert "mean radius" in said
    assert "a share is of the hospitals that may tell it" in " ".join(said.split())
    rows = list(csv.reader((tmp_path / "made" / "table.csv").read_text().splitlines()))
    assert rows[0] == ["site", "column", "all", "malignant", "benign", "missing"]
    assert [row[0] for row in rows[1::31]] == ["all", "site-000", "site-001", "site-002"]
    page = (tmp_path / "made" / "report.html").read_text()
    assert "site-002" in page
    assert page.index("All sites") < page.index("<table>") < page.index("<details>")  # that of all is seen at once
    code, _, wrong = fedsmall("describe", path, "--out", "made")
    assert code == 2
    assert "made" in wrong


def test_times_until_an_event_have_a_survival_curve(fedsmall, tmp_path):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"age": rng.normal(60, 9, 90).round(1), "months": rng.integers(1, 60, 90)})
    frame.assign(event=(rng.random(90) < 0.6).astype(int)).to_csv(tmp_path / "table.csv", index=False)
    path = scenario(tmp_path, '{csv = "table.csv", time = "months", event = "event"}', sites=3)

    code, said, _ = fedsmall("describe", path, "--out", "made")

    assert code == 0
    assert said.count("no event by months") == 5
    assert "Kaplan-Meier curve by months" in (tmp_path / "made" / "report.html").read_text()


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ('"digits"', "describe is for tables"),
        ('{describe = "breast_cancer"}', "names one source"),
    ],
)
def test_what_is_no_table_or_no_task_is_refused_in_one_line(fedsmall, tmp_path, task, reason):
    path = scenario(tmp_path, task, sites=3, samples_per_site=10)

    code, _, wrong = fedsmall("describe", path)

    assert code == 2
    assert reason in wrong
    assert wrong.count("\n") == 1


def test_a_folder_for_the_table_of_real_sites_is_refused_before_anybody_is_asked(fedsmall, tmp_path):
    ended = fedsmall("describe", "consortium_demo", "--consortium", str(tmp_path), "--out", "table")

    assert ended[0] == 2
    assert "written into the run's own folder" in ended[2]


def test_a_scenario_with_methods_is_described_whatever_they_are(fedsmall):
    code, shown, complaint = fedsmall("describe", "patients")  # with privacy, and a reference among its methods

    assert (code, complaint) == (0, "")
    assert "mean radius" in shown


def test_what_predicts_a_vector_is_no_table(fedsmall):
    code, _, wrong = fedsmall("describe", "connectomes")

    assert code == 2
    assert "describe is for tables" in wrong
