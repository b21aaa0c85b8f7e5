"""Ten tables as hospitals send them: sound ones that a seeded script has made messy."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_classification

Frame = pd.DataFrame


class Spoiled(NamedTuple):
    """A table, how it is written, and what is wrong with it."""

    make: Callable[[np.random.Generator], Frame]
    wrongs: tuple[str, ...]
    writing: dict[str, str]


def generated(rows: int, columns: int, share: float) -> Callable[[np.random.Generator], Frame]:
    def make(rng: np.random.Generator) -> Frame:
        x, y = make_classification(
            rows, columns, n_informative=columns // 2, weights=[1 - share], class_sep=0.8, random_state=1
        )
        table = Frame((50 + 10 * x).round(2), columns=[f"marker_{k}" for k in range(columns)])
        return table.assign(outcome=np.where(y, "ill", "well"))

    return make


def cancer(rng: np.random.Generator) -> Frame:
    data = load_breast_cancer(as_frame=True)
    table = data.frame.iloc[:, :6].rename(columns=lambda name: name.replace(" ", "_"))
    return table.assign(outcome=np.where(data.target == 0, "malignant", "benign"))


def diabetes(rng: np.random.Generator) -> Frame:
    data = load_diabetes(as_frame=True, scaled=False)
    return data.frame.drop(columns="target").assign(outcome=np.where(data.target > 200, "yes", "no"))


def wine(rng: np.random.Generator) -> Frame:
    data = load_wine(as_frame=True)
    return data.frame.iloc[:, [0, 1, 2, 4]].assign(outcome=np.where(data.target == 1, 1, 0))


def with_codes(table: Frame, rng: np.random.Generator) -> Frame:
    table = table.copy()
    for column, code in zip(table.columns[:3], (-999, 9999, "unknown"), strict=False):
        table[column] = table[column].astype(object)
        table.loc[rng.random(len(table)) < 0.06, column] = code
    return table


def with_dates(table: Frame, rng: np.random.Generator) -> Frame:
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, len(table)), "D")
    return table.assign(admitted=days.strftime("%d.%m.%Y"))


def with_identifiers(table: Frame, rng: np.random.Generator) -> Frame:
    return table.assign(case_id=10_000 + 7 * rng.permutation(len(table)), country="DE", remark="")


def with_categories(table: Frame, rng: np.random.Generator) -> Frame:
    return table.assign(sex=rng.choice(["f", "m", "unknown"], len(table), p=[0.5, 0.45, 0.05]))


def with_duplicates(table: Frame, rng: np.random.Generator) -> Frame:
    table = table.assign(patient_id=[f"P{n:05}" for n in range(len(table))])
    return pd.concat([table, table.sample(frac=0.2, random_state=3)], ignore_index=True)


def with_hospitals(table: Frame, rng: np.random.Generator) -> Frame:
    return table.assign(hospital=rng.choice(["bonn", "essen", "graz", "ulm"], len(table)))


def with_one_class(table: Frame, rng: np.random.Generator) -> Frame:
    usual = table["outcome"] == table["outcome"].mode()[0]
    few = usual & (rng.random(len(table)) < 0.15)
    return with_hospitals(table, rng).assign(hospital=lambda t: t["hospital"].where(~few, "kiel"))


def with_spellings(table: Frame, rng: np.random.Generator) -> Frame:
    odd = rng.random(len(table)) < 0.1
    return table.assign(outcome=table["outcome"].where(~odd, table["outcome"].str.upper() + " "))


WRONGS: dict[str, Callable[[Frame, np.random.Generator], Frame]] = {
    "codes": with_codes,
    "dates": with_dates,
    "identifiers": with_identifiers,
    "categories": with_categories,
    "duplicates": with_duplicates,
    "hospitals": with_hospitals,
    "one class": with_one_class,
    "spellings": with_spellings,
}
GERMAN = {"sep": ";", "decimal": ",", "encoding": "utf-8-sig"}
LATIN = {"sep": "\t", "encoding": "cp1252"}
TABLES = {
    "cancer": Spoiled(cancer, ("codes", "dates", "identifiers", "spellings"), GERMAN),
    "cancer at hospitals": Spoiled(cancer, ("categories", "one class"), LATIN),
    "diabetes": Spoiled(diabetes, ("codes", "categories"), GERMAN),
    "diabetes twice": Spoiled(diabetes, ("duplicates", "dates"), {}),
    "wine": Spoiled(wine, ("identifiers", "dates", "codes"), GERMAN),
    "rare": Spoiled(generated(2000, 8, 0.04), ("codes", "identifiers"), {}),
    "rare at hospitals": Spoiled(generated(1500, 6, 0.08), ("one class", "categories"), GERMAN),
    "wide": Spoiled(generated(600, 30, 0.4), ("codes", "spellings"), LATIN),
    "few": Spoiled(generated(160, 5, 0.3), ("dates", "identifiers"), GERMAN),
    "all at once": Spoiled(generated(900, 8, 0.2), (*WRONGS.keys() - {"duplicates", "one class"},), GERMAN),
}


def spoil(name: str, path: Path, seed: int = 0) -> None:
    """Write the table of that name as a CSV."""
    rng = np.random.default_rng(seed)
    table = TABLES[name].make(rng)
    for wrong in sorted(TABLES[name].wrongs):
        table = WRONGS[wrong](table, rng)
    table.to_csv(path, index=False, **TABLES[name].writing)
