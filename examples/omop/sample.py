"""Made-up hospitals in OMOP's common data model, each a database and the query that a site reads it by.

    python -m examples.omop.sample omop                 # omop/bonn.sqlite, omop/bonn.sql, omop/bonn.database, ...
    fedsmall run examples/omop/readmission.toml

The people are drawn from a seed. Admission depends on age, heart failure, creatinine and earlier admissions.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import sqlalchemy
from sqlalchemy import Column, Date, Float, Integer, MetaData, Table

from fedsmall.files import write
from fedsmall.randomness import rng_for

QUERY = Path(__file__).with_name("readmission.sql")
SITES = ("bonn", "essen", "ulm")
TYPES = {"id": Integer, "birth": Integer, "number": Float, "date": Date}  # by a column's last word
TABLES = {  # the columns of OMOP 5.4 that the query reads
    "person": ("person_id", "gender_concept_id", "year_of_birth"),
    "condition_occurrence": (
        "condition_occurrence_id",
        "person_id",
        "condition_concept_id",
        "condition_start_date",
    ),
    "measurement": (
        "measurement_id",
        "person_id",
        "measurement_concept_id",
        "measurement_date",
        "value_as_number",
    ),
    "visit_occurrence": ("visit_occurrence_id", "person_id", "visit_concept_id", "visit_start_date"),
}
DIABETES, HEART_FAILURE = 201826, 316139
CONDITIONS = {DIABETES: 0.8, HEART_FAILURE: 0.25, 320128: 0.5, 46271022: 0.2}  # each with its share of people
HBA1C, CREATININE = 3004410, 3016723
MEASURED = {HBA1C: (7.5, 1.2), CREATININE: (1.1, 0.4), 3004249: (138.0, 18.0), 3038553: (29.0, 5.0)}  # mean and SD
ADMISSION, EMERGENCY = 9201, 9203


def rows_of(site: str, people: int, seed: int) -> dict[str, list[tuple]]:
    """The rows of a hospital's four tables."""
    rng = rng_for(seed, "omop", site)
    rows: dict[str, list[tuple]] = {name: [] for name in TABLES}

    def add(table: str, *values: object) -> None:
        rows[table].append((len(rows[table]) + 1, *values))

    def day(year: int) -> np.datetime64:
        return np.datetime64(f"{year}-01-01") + int(rng.integers(365))

    for person in range(1, people + 1):
        born = int(rng.integers(1935, 2010))
        add("person", int(rng.choice((8507, 8532))), born)
        has = [condition for condition, share in CONDITIONS.items() if rng.random() < share]
        for condition in has:
            add("condition_occurrence", person, condition, day(2021).item())
        creatinine = 1.0
        for concept, (mean, deviation) in MEASURED.items():
            for year in (2022, 2023)[: int(rng.integers(3))]:
                value = round(float(abs(rng.normal(mean, deviation))), 1)
                creatinine = value if concept == CREATININE else creatinine
                add("measurement", person, concept, day(year).item(), value)
        earlier = int(rng.poisson(0.6))
        for visit in (*[ADMISSION] * earlier, *[EMERGENCY] * int(rng.poisson(0.5))):
            add("visit_occurrence", person, visit, day(2023).item())
        risk = 0.05 * (1955 - born) + 1.5 * (HEART_FAILURE in has) + 1.5 * (creatinine - 1.1) + 1.2 * (earlier - 0.6)
        if rng.random() < 1 / (1 + np.exp(-risk)):
            add("visit_occurrence", person, ADMISSION, day(2024).item())
    return rows


def fill(url: str, site: str, people: int = 120, seed: int = 0) -> None:
    """Make the tables in an empty database, and a hospital's people in them."""
    engine, schema = sqlalchemy.create_engine(url), MetaData()
    tables = {
        name: Table(name, schema, *(Column(column, TYPES[column.rpartition("_")[2]]) for column in columns))
        for name, columns in TABLES.items()
    }
    schema.create_all(engine)
    with engine.begin() as connection:
        for name, rows in rows_of(site, people, seed).items():
            connection.execute(tables[name].insert(), [dict(zip(TABLES[name], row, strict=True)) for row in rows])
    engine.dispose()


def write_sample(folder: Path, people: int = 120, seed: int = 0) -> None:
    """A database, the query and the database's URL for each of three hospitals."""
    folder.mkdir(parents=True)
    for site in SITES:
        url = f"sqlite:///{(folder / f'{site}.sqlite').absolute()}"
        fill(url, site, people, seed)
        write(folder / f"{site}.database", url.encode(), mode=0o600)
        shutil.copy(QUERY, folder / f"{site}.sql")


if __name__ == "__main__":
    write_sample(Path(sys.argv[1]))
