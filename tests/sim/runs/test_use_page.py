"""The page on using a model is followed from top to bottom in an empty folder."""

import io
import re
from contextlib import redirect_stdout

import pytest

from tests import ROOT
from tests.sim.cli.lines import assert_known

PAGE = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def lines(block: str) -> list[str]:
    return re.findall(r"^fedsmall ([^#\n]+)", block, re.MULTILINE)


@pytest.mark.thorough
def test_the_page_runs(fedsmall):
    variables: dict[str, object] = {}
    with redirect_stdout(io.StringIO()) as shown:
        for block in blocks("python"):
            exec(compile(block, "use.md", "exec"), variables)
    for line in re.findall(r"print\(model.*\)  # (.*)", PAGE):
        assert line in shown.getvalue()

    for line in lines(blocks("bash")[0]):
        code, _, told = fedsmall(*line.split())
        assert code == 0, told
        assert "age is far outside the training data in 1 of 3 rows" in told
    assert "A3" in fedsmall(*lines(blocks("bash")[0])[0].split())[1]


@pytest.mark.thorough
def test_the_exports_of_the_page_are_made(fedsmall, tmp_path):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    exec(compile("\n".join(blocks("python")[:2]), "use.md", "exec"), {})

    for line in lines(blocks("bash")[1]):
        assert fedsmall(*line.split())[0] == 0

    assert fedsmall("predict", "mine.zip", "new.csv")[0] == 0
    assert all((tmp_path / name).is_file() for name in ("mine.onnx", "mine.pt", "mine.zip"))


@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in lines(block)])
def test_every_line_of_the_page_has_words_and_options_that_exist(line):
    assert_known(line)
