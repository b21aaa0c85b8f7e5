"""Tables as hospitals send them: sound ones that a seeded script has made messy."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine, make_classification

Frame = pd.DataFrame
LABEL = ("--label", "outcome")
HEART = ["age", "sex", "pain", "pressure", "cholesterol", "sugar", "ecg", "pulse", "angina", "depression", "slope"]
HEART += ["vessels", "thal", "outcome"]


class Spoiled(NamedTuple):
    """A table, what is wrong with it, how it is written, and what is to be predicted; ``metric`` judges it.

    ``make`` gets the folder of real data, which is None where there is none; ``files`` is how each hospital writes its
    own file, where there is no one table.
    """

    make: Callable[[Path | None], Frame]
    wrongs: tuple[str, ...]
    writing: dict[str, str]
    words: tuple[str, ...] = LABEL
    metric: str = "auc"
    files: Mapping[str, dict[str, str]] = {}
    is_real: bool = False


def generated(rows: int, columns: int, share: float, draw: int = 1) -> Callable[[Path | None], Frame]:
    def make(_: Path | None) -> Frame:
        x, y = make_classification(
            rows, columns, n_informative=columns // 2, weights=[1 - share], class_sep=0.8, random_state=draw
        )
        table = Frame((50 + 10 * x).round(2), columns=[f"marker_{k}" for k in range(columns)])
        return table.assign(outcome=np.where(y, "ill", "well"))

    return make


def cancer(_: Path | None) -> Frame:
    data = load_breast_cancer(as_frame=True)
    table = data.frame.iloc[:, :6].rename(columns=lambda name: name.replace(" ", "_"))
    return table.assign(outcome=np.where(data.target == 0, "malignant", "benign"))


def diabetes(_: Path | None) -> Frame:
    data = load_diabetes(as_frame=True, scaled=False)
    return data.frame.drop(columns="target").assign(outcome=np.where(data.target > 200, "yes", "no"))


def progression(_: Path | None) -> Frame:
    data = load_diabetes(as_frame=True, scaled=False)
    return data.frame.rename(columns={"target": "outcome"})


def relapse(_: Path | None) -> Frame:
    """Months until a relapse, drawn from the size and texture of the breast cancers; a third is censored."""
    table, rng = cancer(None).drop(columns="outcome"), np.random.default_rng(2)
    risk = ((table - table.mean()) / table.std()).iloc[:, [0, 1, 4]].sum(axis=1)
    months, censored = rng.exponential(40 * np.exp(-0.5 * risk)), rng.exponential(80, len(table))
    return table.assign(months=np.minimum(months, censored).round(1) + 0.1, relapsed=(months < censored).astype(int))


def iris(_: Path | None) -> Frame:
    data = load_iris(as_frame=True)
    two = data.frame[data.target > 0].reset_index(drop=True).rename(columns=lambda name: name.removesuffix(" (cm)"))
    return two.drop(columns="target").assign(outcome=np.where(two["target"] == 2, "virginica", "versicolor"))


def wine(_: Path | None) -> Frame:
    data = load_wine(as_frame=True)
    names = np.array(["barolo", "grignolino", "barbera"])
    return data.frame.iloc[:, [0, 1, 2, 4]].assign(outcome=names[data.target])


def fetal_health(data: Path | None) -> Frame:
    table = pd.read_csv(Path(str(data), "fetal_health.csv"))
    states = table.pop("fetal_health").astype(int)
    return table.assign(outcome=np.where(states == 3, "pathological", "other"))


def heart_disease(data: Path | None) -> Frame:
    frames = []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        file = Path(str(data), "heart_disease", f"processed.{hospital}.data")
        frames.append(pd.read_csv(file, names=HEART, na_values="?").assign(hospital=hospital))
    table = pd.concat(frames, ignore_index=True)
    return table.assign(outcome=np.where(table["outcome"] > 0, "Ja", "Nein"))


def with_codes(table: Frame, rng: np.random.Generator) -> Frame:
    table = table.copy()
    for column, code in zip(table.columns[:4], (-999, 9999, "unknown", -99), strict=False):
        if column != "outcome":
            table[column] = table[column].astype(object)
            table.loc[rng.random(len(table)) < 0.06, column] = code
    return table


def with_dates(table: Frame, rng: np.random.Generator) -> Frame:
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, len(table)), "D")
    return table.assign(admitted=days.strftime("%d.%m.%Y"))


def with_identifiers(table: Frame, rng: np.random.Generator) -> Frame:
    return table.assign(case_id=10_000 + 7 * rng.permutation(len(table)), country="DE", remark="")


def with_categories(table: Frame, rng: np.random.Generator) -> Frame:
    return table.assign(smoker=rng.choice(["nie", "früher", "NA"], len(table), p=[0.5, 0.45, 0.05]))


def with_visits(table: Frame, rng: np.random.Generator) -> Frame:
    """Some patients with a second row, which differs a little in the first column."""
    table = table.assign(patient_id=[f"P{n:05}" for n in range(len(table))])
    again = table.sample(frac=0.2, random_state=3)
    first = again.columns[0]
    return pd.concat([table, again.assign(**{first: (again[first] * 1.01).round(3)})], ignore_index=True)


def with_duplicates(table: Frame, rng: np.random.Generator) -> Frame:
    return pd.concat([table, table.sample(frac=0.02, random_state=3)], ignore_index=True)


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
    "visits": with_visits,
    "duplicates": with_duplicates,
    "hospitals": with_hospitals,
    "one class": with_one_class,
    "spellings": with_spellings,
}
GERMAN = {"sep": ";", "decimal": ",", "encoding": "utf-8-sig"}
LATIN = {"sep": "\t", "encoding": "cp1252"}
SURVIVAL = ("--time", "months", "--event", "relapsed")
TABLES = {
    "wine": Spoiled(wine, ("identifiers", "dates", "codes"), GERMAN),
    "few": Spoiled(generated(160, 5, 0.3), ("dates", "identifiers", "duplicates"), GERMAN),
    "cancer": Spoiled(cancer, ("codes", "dates", "identifiers", "spellings"), GERMAN),
    "cancer at hospitals": Spoiled(cancer, ("categories", "one class"), LATIN),
    "diabetes": Spoiled(diabetes, ("codes", "categories"), GERMAN),
    "visits": Spoiled(diabetes, ("visits", "dates"), {}),
    "progression": Spoiled(progression, ("codes", "identifiers", "hospitals"), GERMAN, metric="r2"),
    "relapse": Spoiled(relapse, ("categories", "dates", "hospitals"), LATIN, SURVIVAL, "c_index"),
    "rare": Spoiled(generated(2000, 8, 0.04), ("codes", "identifiers"), {}),
    "rare at hospitals": Spoiled(generated(1500, 6, 0.08), ("one class", "categories"), GERMAN),
    "wide": Spoiled(generated(600, 30, 0.4), ("codes", "spellings"), LATIN),
    "all at once": Spoiled(generated(900, 8, 0.2), (*WRONGS.keys() - {"visits", "one class"},), GERMAN),
    "thin": Spoiled(generated(400, 6, 0.3, draw=11), ("codes", "dates", "duplicates"), GERMAN),
    "iris": Spoiled(iris, ("identifiers", "duplicates"), LATIN),
    "fetal health": Spoiled(fetal_health, ("codes", "dates", "identifiers"), GERMAN, is_real=True),
    "heart disease": Spoiled(
        heart_disease,
        ("dates",),
        {},
        files={"cleveland": GERMAN, "hungarian": LATIN, "switzerland": {}, "va": {"na_rep": "?"}},
        is_real=True,
    ),
}


def spoil(name: str, path: Path, data: Path | None = None, seed: int = 0) -> None:
    """Write the table of that name as a CSV at ``path``, or a folder of that name with a file for each hospital."""
    rng, spoiled = np.random.default_rng(seed), TABLES[name]
    table = spoiled.make(data)
    for wrong in sorted(spoiled.wrongs):
        table = WRONGS[wrong](table, rng)
    for hospital, writing in spoiled.files.items():
        path.mkdir(exist_ok=True)
        _write(table[table["hospital"] == hospital].drop(columns="hospital"), path / f"{hospital}.csv", writing)
    if not spoiled.files:
        _write(table, path, spoiled.writing)


def _write(table: Frame, path: Path, writing: Mapping[str, Any]) -> None:
    table.to_csv(path, index=False, **writing)
