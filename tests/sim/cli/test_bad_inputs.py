"""Every bad input of the table ends with code 2 and one line that says the word, and leaves nothing behind."""

import os
import shutil

import pytest
import tomli_w

from tests.sim.cli.bad_inputs import GOOD, OF_COMMANDS, OF_SCENARIOS, OF_TABLES, SCENARIO


@pytest.fixture
def folder(fedsmall, tmp_path):
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "good.toml").write_text(tomli_w.dumps(SCENARIO))
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of the good scenario."""
    from fedsmall.sim.runs.execute import execute
    from fedsmall.sim.runs.scenario import build

    folder = tmp_path_factory.mktemp("good")
    (folder / "t.csv").write_text(GOOD)
    execute(build({**SCENARIO, "task": {"csv": str(folder / "t.csv"), "label": "state"}}), folder / "done")
    return folder / "done"


def assert_one_line(said: tuple[int, str, str], word: str, folder, before: set[str]) -> None:
    code, _, complained = said
    assert code == 2, said
    assert len(complained.strip().splitlines()) == 1, complained
    assert word.lower() in complained.lower()
    assert "Traceback" not in complained
    assert str(folder) not in complained
    assert set(os.listdir(folder)) == before


@pytest.mark.parametrize(("keys", "word"), OF_SCENARIOS, ids=[str(keys)[1:-1][:60] for keys, _ in OF_SCENARIOS])
def test_a_scenario_with_a_wrong_key_is_refused_in_one_line(keys, word, fedsmall, folder):
    (folder / "s.toml").write_text(tomli_w.dumps({**SCENARIO, **keys}))

    assert_one_line(fedsmall("run", "s.toml"), word, folder, {"t.csv", "good.toml", "s.toml"})


@pytest.mark.parametrize(("text", "word"), OF_TABLES, ids=range(len(OF_TABLES)))
def test_a_table_that_is_none_is_refused_in_one_line(text, word, fedsmall, folder):
    (folder / "t.csv").write_text(text)

    assert_one_line(fedsmall("run", "good.toml"), word, folder, {"t.csv", "good.toml"})


@pytest.mark.parametrize(("line", "word"), OF_COMMANDS, ids=[line for line, _ in OF_COMMANDS])
def test_a_wrong_command_line_is_refused_in_one_line(line, word, fedsmall, folder, finished):
    shutil.copytree(finished, folder / "done")
    (folder / "wrong.csv").write_text("age,state\n1,ill\n")
    (folder / "empty.csv").write_text("")
    (folder / "text.csv").write_text("age,marker\nold,3\n")
    before = set(os.listdir(folder))

    assert_one_line(fedsmall(*line.split()), word, folder, before)
