"""A valid table, folder or scenario that is changed at random is used, or refused in one line: never a traceback."""

import os
import tomllib
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsmall.data.federation import Federation
from fedsmall.errors import DataError, PlanError
from tests.sim.input import cases
from tests.sim.input.test_cases import built

QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))

ODD = [
    b"",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b'"',
    b",",
    b";",
    b"\t",
    b"\n",
    b"\r",
    b"\n\n",
    b"?",
    b"NA",
    b"-9",
    b"<5",
]
ODD += [
    b"nan",
    b"inf",
    b"1e999",
    b"1,5",
    b"2024-01-01",
    "ß".encode(),
    "\u2028".encode(),
    "\xa0".encode(),
    b"=1+1",
    b"'",
]
ODD += [b"x" * 400, b"9" * 400, b"{", b"[", b"]", b"#", b"\\", b"true", b"0", b"-1", b"_", b"%s", b"{0}", "٣".encode()]
VALUES: list[Any] = [0, -1, 1, 3, 10**9, 0.5, 1.0, -0.5, float("nan"), float("inf"), True, "", "x", "ill", "n" * 500]
VALUES += [
    "a\nb",
    "\x00",
    "../..",
    "/",
    [],
    [1],
    ["age"],
    [[]],
    ["ill", "ill"],
    {},
    {"a": 1},
    {"ill": ["Ill"]},
    "official",
]
SCENARIO: dict[str, Any] = {
    "name": "case",
    "sites": 3,
    "samples_per_site": 2,
    "partition": "iid",
    "rounds": 2,
    "seeds": [0],
    "model": "linear",
    "recipe": {"lr": 0.1, "batch": 4},
    "method": [{"name": "FedDC", "aggregate_every": 2}],
}
TABLE: dict[str, Any] = {
    "csv": "t.csv", "label": "ill", "drop": ["row"], "classes": ["0", "1"], "categorical": ["sex"], "missing": ["<5"],
    "decimal": ".", "patient": "row",
}  # fmt: skip
HEAD, LINE = "row,age,sex,dose,ill", "{row},{age},{word},{dose},{ill}"
IMAGES: dict[str, Any] = {"images": "scans", "size": 6, "channels": 1, "range": [0, 255]}
KINDS = ("table", "hospitals", "images", "scenario of a table", "scenario of images")


@st.composite
def bytes_changed(draw: Any, content: bytes) -> bytes:
    """A file with up to three places changed."""
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.sampled_from([0, 1, 2, 8, 40, 10**6])))
        put = draw(st.sampled_from([*ODD, content[begin:end] * 2, content[::-1][:9]]))
        content = content[:begin] + put + content[end:]
    return content


@st.composite
def keys_changed(draw: Any, table: dict[str, Any]) -> dict[str, Any]:
    """A scenario with up to three keys set anew, left out or added, at any depth."""
    table, odd = tomllib.loads(tomli_w.dumps(table)), st.sampled_from(VALUES).map(deepcopy)
    for _ in range(draw(st.integers(1, 3))):
        node: Any = table
        while True:
            places = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not places:
                break
            place = draw(st.sampled_from(places))
            if isinstance(node[place], dict | list) and draw(st.booleans()):
                node = node[place]
                continue
            what = draw(st.sampled_from(["set", "set", "drop", "add"]))
            if what == "set":
                node[place] = draw(odd)
            elif what == "drop":
                del node[place]
            elif isinstance(node, dict):
                node[draw(st.sampled_from([*SCENARIO, *TABLE, *IMAGES, "test", "folds", "x"]))] = draw(odd)
            break
    return table


def files_of(kind: str) -> dict[str, bytes]:
    if "images" in kind:
        return {
            f"scans/{label}/{k}.png": cases.png(k + 50 * (label == "ill"))
            for label in ("ill", "well")
            for k in range(6)
        }
    table = cases.rows(16, LINE, HEAD).encode()
    return (
        {"h/essen.csv": table, "h/graz.csv": cases.rows(16, LINE, HEAD, 40).encode()}
        if kind == "hospitals"
        else {"t.csv": table}
    )


@st.composite
def worlds(draw: Any) -> tuple[dict[str, bytes], bytes, str]:
    """Files, the text of a scenario, and what else is done to the folder."""
    kind = draw(st.sampled_from(KINDS))
    files, keys = files_of(kind), {**SCENARIO, "task": IMAGES if "images" in kind else TABLE}
    if kind == "hospitals":
        keys = {**keys, "task": {**TABLE, "csv": "h"}, "partition": {"natural": "file"}}
        del keys["sites"]
    if kind.startswith("scenario"):
        changed = draw(keys_changed(keys))
        text = tomli_w.dumps(changed).encode()
        return files, draw(st.one_of(st.just(text), st.just(text), bytes_changed(text))), ""
    victim = draw(st.sampled_from(sorted(files)))
    files[victim] = draw(bytes_changed(files[victim]))
    more = draw(st.sampled_from(["", "", "rename", "remove", "link", "loop", "folder"])) if "/" in victim else ""
    if more == "rename":
        name = draw(
            st.sampled_from(
                ["._a.csv", "~$a.xlsx", "a b.csv", "ä.png", "a.xlsx", "a.parquet", "a.dcm", "n" * 200 + ".csv"]
            )
        )
        files[f"{victim.rpartition('/')[0]}/{name}"] = files.pop(victim)
    elif more == "remove":
        del files[victim]
    return files, tomli_w.dumps(keys).encode(), more


def one_line_or_used(world: tuple[dict[str, bytes], bytes, str]) -> None:
    files, scenario, more = world
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        inside = folder / next(iter(files)).partition("/")[0] if files else folder
        if more == "link":
            os.symlink("nobody.csv", inside / "x.csv")
        elif more == "loop":
            os.symlink(".", inside / "again")
        elif more == "folder":
            (inside / "x.csv").mkdir()
        (folder / "s.toml").write_bytes(scenario)
        refused, federation = outcome(folder / "s.toml")
        assert (refused == "") == (federation is not None and len(federation.train) > 0)
        assert len(refused.splitlines()) <= 1
        assert len(refused) < 1500
        assert name not in refused
        assert not any("\n" in note for note in (federation.notes if federation is not None else ()))


def outcome(scenario: Path) -> tuple[str, Federation | None]:
    """What a scenario is refused with, or its federation."""
    try:
        return "", built(scenario)
    except (DataError, PlanError) as refused:
        return str(refused), None


@QUICK
@given(worlds())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_changed_at_random_is_used_or_refused(world: tuple[dict[str, bytes], bytes, str]) -> None:
    one_line_or_used(world)


@pytest.mark.slow
@LONG
@given(worlds())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_thousand_changes_make_no_traceback(world: tuple[dict[str, bytes], bytes, str]) -> None:
    one_line_or_used(world)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_changed_is_used(kind: str, tmp_path: Path) -> None:
    files, keys = files_of(kind), {**SCENARIO, "task": IMAGES if "images" in kind else TABLE}
    if kind == "hospitals":
        keys = {**keys, "task": {**TABLE, "csv": "h"}, "partition": {"natural": "file"}}
        del keys["sites"]
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    (tmp_path / "s.toml").write_bytes(tomli_w.dumps(keys).encode())

    assert len(built(tmp_path / "s.toml").train) == (2 if kind == "hospitals" else 3)
