"""A query is read as the CSV of its rows would be, cannot write, and gives no secret away."""

import sqlite3
import sys
from contextlib import closing

import numpy as np
import pandas
import pytest

from fedsmall.audit_log import verify
from fedsmall.clients.data_process import DataProcess
from fedsmall.data.table_files import read_table
from fedsmall.errors import DataError
from fedsmall.planning.tasks import load_site
from tests.clients.test_data_process import AS_IT_IS, config, order, plan, refused, scaled

SELECT = "SELECT * FROM ward"
SECRET = "n0b0dy-kn0ws"
NO_SELECT = "one SELECT and nothing else"


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Write a query of a database with one table, of one patient a row; gives the query's path."""
    monkeypatch.setenv("FEDSMALL_DATABASE", f"sqlite:///{tmp_path / 'ward.sqlite'}")
    with closing(sqlite3.connect(tmp_path / "ward.sqlite")) as ward, ward:
        ward.execute("CREATE TABLE ward (age REAL, sex TEXT, dose INTEGER, died INTEGER, seen TEXT)")
        ward.executemany(
            "INSERT INTO ward VALUES (?, ?, ?, ?, '2024-05-01')",
            [(90.5 - i, "fm"[i % 2], None if i % 5 == 0 else i, int(i % 3 == 0)) for i in range(40)],
        )
    ward.close()

    def query(text: str = SELECT):
        (tmp_path / "ward.sql").write_text(text)
        return tmp_path / "ward.sql"

    return query


def rows(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ward.sqlite")) as ward, ward:
        return ward.execute(SELECT).fetchall()


def test_a_query_gives_the_samples_that_the_csv_of_its_rows_does(ask, tmp_path):
    query = ask("SELECT age, sex, dose, died FROM ward")
    frame = read_table(query)
    frame.to_csv(tmp_path / "ward.csv", index=False)
    task = {"label": "died", "classes": ["0", "1"], "categorical": {"sex": ["f", "m"]}}

    by_query, by_file = (
        load_site(plan().model_copy(update={"task": {"csv": "x", **task}}), "bonn", path)
        for path in (query, tmp_path / "ward.csv")
    )

    for ours, theirs in ((by_query.train, by_file.train), (by_query.held_out, by_file.held_out)):
        np.testing.assert_array_equal(ours.x, theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)
    assert np.isnan(by_query.train.x).any()


def test_the_order_in_which_a_database_gives_its_rows_does_not_matter(ask):
    up, down = (read_table(ask(f"{SELECT} ORDER BY age {way}")) for way in ("ASC", "DESC"))

    pandas.testing.assert_frame_equal(up, down)
    assert up["age"].is_monotonic_increasing


@pytest.mark.parametrize(
    "text",
    [
        "WITH old AS (SELECT * FROM ward WHERE age > 60) SELECT * FROM old;",
        "-- who is old; DROP TABLE\nSELECT * FROM ward /* INSERT */ WHERE sex <> 'update; x'",
        'SELECT age AS "set", died FROM ward',
    ],
)
def test_words_in_comments_text_and_quoted_names_are_no_statements(ask, text):
    assert len(read_table(ask(text))) > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", NO_SELECT),
        ("DELETE FROM ward", NO_SELECT),
        ("SELECT 1; DELETE FROM ward", NO_SELECT),
        ("EXPLAIN SELECT 1", NO_SELECT),
        ("WITH gone AS (DELETE FROM ward RETURNING *) SELECT * FROM gone", "DELETE is for what writes"),
        ("SELECT * INTO copy FROM ward", "COPY is for what writes|INTO is for what writes"),
        ("SELECT '--' ; DROP TABLE ward", NO_SELECT),
        ("SELECT nobody FROM ward", r"SQLITE_ERROR.*no such table or column"),
        ("SELECT * FROM ward WHERE 0", "no row under the header"),
        ("SELECT age, age FROM ward", "duplicate column names"),
    ],
)
def test_what_is_no_query_of_a_site_is_refused_in_one_line(ask, tmp_path, text, said):
    before = rows(tmp_path)
    query = ask(text)

    with pytest.raises(DataError, match=said) as refusal:
        load_site(plan(), "bonn", query)

    assert "\n" not in str(refusal.value)
    assert rows(tmp_path) == before


def test_the_database_itself_is_told_to_refuse_what_writes(ask, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsmall.extensions.sql.query", lambda path: "DELETE FROM ward")
    before = rows(tmp_path)

    with pytest.raises(DataError, match=r"SQLITE_READONLY\): the query would write"):
        read_table(ask())

    assert rows(tmp_path) == before


def test_no_message_has_the_databases_url_or_what_the_database_says(ask, tmp_path, monkeypatch):
    query = ask()
    urls = {
        "": "no database is named",
        SECRET: "is no URL",
        f"oracle://me:{SECRET}@here/ward": "oracle is not read",
        f"sqlite:///{SECRET}.sqlite": "SQLITE_CANTOPEN",
        f"postgresql://me:{SECRET}@127.0.0.1:1/ward": "does not answer",
    }
    for url, said in urls.items():
        monkeypatch.setenv("FEDSMALL_DATABASE", url)
        with pytest.raises(DataError, match=said) as refusal:
            read_table(query)
        assert SECRET not in str(refusal.value)
    assert not list(tmp_path.glob(f"*{SECRET}*"))


def test_a_database_named_beside_the_query_comes_first_and_is_its_owners_alone(ask, tmp_path, monkeypatch):
    query, beside = ask(), tmp_path / "ward.database"
    beside.write_text(f"sqlite:///{tmp_path / 'ward.sqlite'}\n")
    monkeypatch.setenv("FEDSMALL_DATABASE", "sqlite:///elsewhere")

    beside.chmod(0o640)
    with pytest.raises(DataError, match="chmod 600"):
        read_table(query)
    beside.chmod(0o600)
    assert len(read_table(query)) == 40


def test_without_sqlalchemy_the_extra_is_named(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy.engine", None)

    with pytest.raises(DataError, match=r"pip install 'fedsmall\[sql\]'"):
        read_table(ask())


@pytest.fixture
def station(ask, tmp_path):
    (tmp_path / "policy.toml").write_text(AS_IT_IS)
    return DataProcess(
        "essen", ask("SELECT age, dose, died AS diagnosis FROM ward"), tmp_path, tmp_path / "policy.toml"
    )


def of_query(**more):
    task = {"csv": "x.csv", "label": "diagnosis", "classes": ["0", "1"]}
    return plan(**more).model_copy(update={"task": task})


def test_a_station_asks_once_in_a_run_and_its_log_has_the_query(station):
    model = scaled(station, of_query())
    assert "error" not in station.answer("train", order(1, the_plan=of_query()), model)[0]
    scaled(station, of_query(), run="next")

    asked = [entry for entry in station.log.entries() if entry["event"] == "asked"]

    assert [(entry["run"], entry["kind"]) for entry in asked] == [("r", "sql"), ("next", "sql")]
    assert {entry["reason"] for entry in asked} == {station.data.read_text()}
    assert verify(station.log.path).fault is None


def test_patients_who_come_during_a_run_are_in_the_next_one(station, tmp_path):
    model = scaled(station, of_query())
    before, _ = station.answer("roll", config(of_query()), {})
    with closing(sqlite3.connect(tmp_path / "ward.sqlite")) as ward, ward:
        ward.executemany("INSERT INTO ward VALUES (50, 'f', 3, ?, '')", [(0,), (1,)] * 4)

    assert "error" not in station.answer("train", order(1, the_plan=of_query()), model)[0]
    after, _ = station.answer("roll", config(of_query(), "next"), {})
    again = DataProcess("essen", station.data, station.home, station.policy_file)

    assert after["config"]["num-examples"] > before["config"]["num-examples"]
    assert "data have changed since this run began" in refused(again, "train", order(2, the_plan=of_query()), model)


def test_site_check_takes_a_query(ask, fedsmall):
    query = ask()
    task = '{csv = "", label = "died", drop = ["seen"], categorical = {sex = ["f", "m"]}}'

    code, said, _ = fedsmall("site", "check", "--data", query, "--task", task)

    assert code == 0
    assert "samples" in said
    query.write_text("DELETE FROM ward")
    code, said, _ = fedsmall("site", "check", "--data", query, "--task", task)
    assert (code, NO_SELECT in said) == (1, True)
