"""Links of pages that are shown elsewhere than they lie, and notebooks as pages."""

import json
from base64 import b64encode

import pytest

from docs.manual.links import relinked, uri_of
from docs.manual.notebooks import page, title


@pytest.mark.parametrize(
    ("place", "written", "shown"),
    [
        ("tutorials/own-table.md", "[a](../images.md#images)", "[a](../images.md#images)"),
        ("tutorials/install.md", "[a](../../CONTRIBUTING.md)", "[a](../project/contributing.md)"),
        ("project/containers.md", "[a](../docs/security.md)", "[a](../security.md)"),
        ("sealed.md", "[a](../docker/README.md)", "[a](project/containers.md)"),
        ("howto/images.md", "[a](../data.md)", "[a](../data.md)"),
        ("data.md", "[a](report.md#x)", "[a](report.md#x)"),
        ("data.md", "[a](#images)", "[a](#images)"),
        ("tutorials/notebooks/first_federation.md", "[a](../../docs/images.md#images)", "[a](../../images.md#images)"),
        ("tutorials/notebooks/first_federation.md", "[a](first_federation.ipynb)", "[a](first_federation.md)"),
        ("data.md", "[a](https://flower.ai)", "[a](https://flower.ai)"),
        ("beside.md", "[a](../README.md#install)", "[a](index.md)"),
        ("beside.md", "[a](../README.md)", "[a](index.md)"),
        ("project/changes.md", "[docs/data.md](docs/data.md#a-table)", "[Data](../data.md#a-table)"),
        ("findings.md", "[data.md](data.md)", "[Data](data.md)"),
        ("findings.md", "[evidence/study.csv](evidence/study.csv)", "[evidence/study.csv](evidence/study.csv)"),
        ("project/contributing.md", "![a](docs/bench.png)", "![a](../bench.png)"),
        (
            "tutorials/flower-app.md",
            "[app](../../examples/flower_app/server_app.py)",
            "app (`examples/flower_app/server_app.py`)",
        ),
        ("data.md", "```\n[a](docs/x.md)\n```", "```\n[a](docs/x.md)\n```"),
    ],
)
def test_a_link_leads_where_it_led(place, written, shown):
    assert relinked(written, place, {"data.md": "Data"}) == shown


def test_a_notebook_is_linked_as_its_page():
    assert uri_of("examples/notebooks/first_federation.ipynb") == "tutorials/notebooks/first_federation.md"


@pytest.fixture
def notebook(tmp_path):
    def made(*cells: tuple[str, str, list]) -> object:
        path = tmp_path / "made_one.ipynb"
        held = [
            {
                "cell_type": kind,
                "source": text.splitlines(keepends=True),
                **({"outputs": out} if kind == "code" else {}),
            }
            for kind, text, out in cells
        ]
        path.write_text(json.dumps({"cells": held}))
        return path

    return made


def test_a_notebook_becomes_its_text_and_its_code(notebook):
    path = notebook(
        ("markdown", "# A title\n\nWhat it is.", []),
        ("code", "%%writefile mine.toml\nname = 'x'", [{"output_type": "stream", "text": ["Writing mine.toml"]}]),
        ("code", "x = 1\nx", []),
        ("code", "!fedsmall run mine.toml", []),
    )

    text = page(path)

    assert title(path) == "A title"
    assert text.startswith("# A title\n\n*For hospital data scientists and researchers.*\n\n")
    assert text.count("# A title") == 1
    assert "Writing" not in text
    assert "```toml title=\"mine.toml\"\nname = 'x'\n```" in text
    assert "```python\nx = 1\nx\n```" in text
    assert "```bash\nfedsmall run mine.toml\n```" in text
    assert '<a href="made_one.ipynb" download>' in text


def test_a_notebook_may_say_itself_for_whom_it_is(notebook):
    path = notebook(("markdown", "# A title\n\n*For coordinators.*\n\nText.", []))

    assert page(path).count("*For ") == 1
    assert page(path).startswith("# A title\n\n*For coordinators.*\n\nThis page is")


def test_the_outputs_that_a_notebook_holds_are_shown(notebook):
    outputs = [
        {"output_type": "stream", "text": ["said\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": ["<Figure>"]}},
        {"output_type": "execute_result", "data": {"text/html": ["<table></table>"], "text/plain": ["t"]}},
        {"output_type": "execute_result", "data": {"text/html": ["<script>x</script>"], "text/plain": ["plain"]}},
        {"output_type": "execute_result", "data": {"text/html": ['<style scoped>x</style><table border="1"><tr>']}},
        {"output_type": "execute_result", "data": {"image/svg+xml": ["<svg/>"], "text/plain": ["drawn"]}},
    ]

    text = page(notebook(("markdown", "# A", []), ("code", "x", outputs)))

    assert "```text\nsaid\n\n```" in text
    assert "data:image/png;base64,aGk=" in text
    assert "<div><table></table></div>" in text
    assert "<script" not in text
    assert "<div><table><tr></div>" in text
    assert f"data:image/svg+xml;base64,{b64encode(b'<svg/>').decode()}" in text
    assert "```text\nplain\n```" in text


def test_a_notebook_without_a_heading_is_called_by_its_name(notebook):
    assert title(notebook(("code", "x", []))) == "Made one"
