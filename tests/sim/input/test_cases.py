"""What messy and bad input gets: a line, a note, or so many samples; never a traceback."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsmall.data.federation import Federation
from fedsmall.errors import DataError, PlanError
from fedsmall.models.registry import initial_model
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_run
from fedsmall.sim.runs.scenario import load
from tests.sim.input import cases, deep_cases, more_cases
from tests.sim.input.cases import Case

ALL: dict[str, Case] = {
    f"{kind}: {name}": case
    for kind, held in {
        "encodings": cases.ENCODINGS,
        "separators": cases.SEPARATORS,
        "numbers": cases.NUMBERS_AS_WRITTEN,
        "missing": cases.MISSING,
        "headers": cases.HEADERS,
        "labels": cases.LABELS,
        "outcomes": cases.OUTCOMES,
        "columns": cases.COLUMNS,
        "files": more_cases.several_kinds(),
        "hospitals": more_cases.HOSPITALS,
        "images": more_cases.IMAGES,
        "films": deep_cases.of_films(),
        "volumes": deep_cases.of_volumes(),
        "arrays": more_cases.FILES_OF_ARRAYS,
        "scenarios": more_cases.SCENARIOS,
    }.items()
    for name, case in held.items()
}


def written(folder: Path, case: Case) -> Path:
    """The files of a case, and its scenario."""
    for name, content in case.files.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if case.prepare is not None:
        case.prepare(folder)
    named = "" if "\nname = " in case.keys else 'name = "case"\n'
    given = "" if "\nrounds = " in case.keys else "rounds = 2\n"
    (folder / "s.toml").write_text(f'{named}{case.keys}{given}[[method]]\nname = "FedAvg"\n')
    return folder / "s.toml"


def built(scenario: Path) -> Federation:
    """What a run does until it trains."""
    plan = load(scenario).plans()[0]
    federation = build_federation(plan)
    check_run(plan, federation)
    initial_model(plan, federation.task)
    return federation


def samples(federation: Federation) -> int:
    return sum(map(len, federation.train)) + federation.test_samples


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.line])
def test_what_cannot_be_used_is_one_line(name: str, tmp_path: Path) -> None:
    case = ALL[name]

    with pytest.raises((DataError, PlanError)) as caught:
        built(written(tmp_path, case))

    text = str(caught.value)
    assert case.line in text or re.search(case.line, text), text
    assert "\n" not in text
    assert len(text) < 1000
    assert str(tmp_path) not in text


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if not case.line])
def test_what_can_be_used_is_used_whole_and_what_is_odd_is_said(name: str, tmp_path: Path) -> None:
    case = ALL[name]

    federation = built(written(tmp_path, case))

    assert samples(federation) == case.samples
    assert len(federation.task.class_names) == case.classes
    assert case.note in "\n".join(federation.notes)
    assert not any("\n" in note for note in federation.notes)


def test_the_cases_are_many_and_each_says_what_is_expected() -> None:
    assert len(ALL) >= 198
    assert all(bool(case.line) != (case.samples is not None) for case in ALL.values())


def test_a_case_can_fail(tmp_path: Path) -> None:
    wrong: dict[str, Any] = tomllib.loads('line = "nothing of the kind"')

    with pytest.raises(DataError) as caught:
        built(written(tmp_path, ALL["headers: a column twice"]))

    assert wrong["line"] not in str(caught.value)
