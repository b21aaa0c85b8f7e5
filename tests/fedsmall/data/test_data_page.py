"""The pages on data are run as a reader would run them, from top to bottom in an empty folder."""

import re
import sys
import tomllib

import pytest

from fedsmall.models.registry import initial_model
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation, load_site
from tests import ROOT

PAGE = "\n".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("data", "samples", "images", "networks")
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("mine", None)


def test_the_examples_of_the_page_run(folder, capsys):
    variables: dict[str, object] = {}

    for block in blocks("python"):
        exec(compile(block, "data.md", "exec"), variables)

    shown = capsys.readouterr().out
    for line in re.findall(r"print\(.*\)  # (.*)", PAGE):
        assert line in shown
    assert "What never leaves it:" in shown


def test_the_scenarios_of_the_page_are_federations(folder):
    from PIL import Image

    variables: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "data.md", "exec"), variables)
    (folder / "hospitals").mkdir()
    for name in ("essen", "liege"):
        (folder / "hospitals" / f"{name}.csv").write_text("x,outcome\n" + "1,0\n2,1\n3,0\n4,1\n" * 3)
    for label in ("ill", "well"):
        for scans in (folder / "scans" / label, *(folder / "xrays" / half / label for half in ("train", "test"))):
            scans.mkdir(parents=True)
            for shade in range(60):
                Image.new("L", (40, 30), shade).save(scans / f"{shade}.png")
    text = (folder / "patients.csv").read_text()
    (folder / "patients.csv").write_text(re.sub(r",f,", ",0,", text).replace(",m,", ",1,"))
    (folder / "local.csv").write_text(text)
    visits = [f"p{row // 3},{row},{row // 3 % 2}" for row in range(60)]
    (folder / "visits.csv").write_text("\n".join(["patient_id,x,outcome", *visits]))

    for block in blocks("toml"):
        table = {"sites": 4, "samples_per_site": 5} if "images" in block or "visits" in block else {}
        plan = Plan(name="t", method=Method(name="FedDC"), **table, **tomllib.loads(block))
        if "local.csv" in block:
            assert load_site(plan, "essen", folder / "local.csv").task.class_names == ("well", "ill")
            continue
        federation = build_federation(plan)
        assert min(len(site) for site in federation.train) > 0
        assert initial_model(plan, federation.task)


def test_every_source_and_partition_stands_on_the_page():
    from fedsmall.data.sources.registry import KINDS, TASKS
    from fedsmall.data.splits import KINDS as partitions

    for word in (*TASKS, *KINDS, *partitions):
        assert word in PAGE
