"""The examples of Flower apps of one's own: numbers in every round, no traceback, and models that have learnt."""

import ast
import importlib
import re
import shutil
import sys
import tomllib
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

from fedsmall.sim.engines.inprocess import InProcessGrid
from tests import ROOT
from tests.fedsmall.test_one_package import make_app
from tests.flower import local_superlink

APPS = ["flower_app", "flower_sklearn", "flower_text"]
OWN = ("client_app", "server_app", "task")


def project(app: str) -> dict:
    return tomllib.loads((ROOT / "examples" / app / "pyproject.toml").read_text())


def settings(app: str) -> dict:
    return flatten_dict(project(app)["tool"]["flwr"]["app"]["config"])


def needs_transformers(app: str) -> None:
    if app == "flower_text" and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")


@contextmanager
def modules(app: str):
    """The app's modules, imported as Flower does: its folder first on the path."""
    needs_transformers(app)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples" / app)
        try:
            yield [importlib.import_module(name) for name in OWN[:2]]
        finally:
            for name in OWN:
                sys.modules.pop(name, None)
            if "torchvision" in sys.modules and sys.modules["torchvision"] is None:
                del sys.modules["torchvision"]  # the app's word that there is none


def imports(app: str, module: str) -> set[str]:
    tree = ast.parse((ROOT / "examples" / app / f"{module}.py").read_text())
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in froms} | {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }


@pytest.mark.parametrize("app", APPS)
def test_the_client_knows_nothing_of_us(app):
    assert imports(app, "client_app").isdisjoint({"fedsmall", "strategies", "clients", "sim"})


@pytest.mark.parametrize("app", APPS)
def test_its_project_names_what_it_imports_and_the_flower_that_we_run(app):
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*ours["dependencies"], *(one for group in ours["optional-dependencies"].values() for one in group)]
    named = {re.split(r"[^\w-]", one)[0]: one for one in project(app)["project"]["dependencies"]}

    used = {name for path in (ROOT / "examples" / app).glob("*.py") for name in imports(app, path.stem)}
    used = {"scikit-learn" if name == "sklearn" else name for name in used - {*sys.stdlib_module_names, *OWN}}

    assert used - {"torchvision"} == set(named)  # where it cannot be imported, the app does without
    assert named["flwr"] in declared
    assert set(named) - {"fedsmall"} <= {re.split(r"[^\w-]", one)[0] for one in declared}


@pytest.mark.thorough
@pytest.mark.parametrize("app", APPS)
def test_it_learns_and_says_so(app, capsys, caplog):
    with modules(app) as (client, server), caplog.at_level("INFO", logger="flwr"):
        grid = InProcessGrid(client.app, 2)
        server.app(grid, Context(1, 1, {}, RecordDict(), settings(app)))

    assert not grid.tracebacks
    check(app, "\n".join([*caplog.messages, capsys.readouterr().out]))


@pytest.mark.thorough
def test_a_model_of_the_hub_is_a_folder_or_a_name(tmp_path):
    """A folder of ``save_pretrained`` takes the way of a name, without a download."""
    with modules("flower_text"):
        task = importlib.import_module("task")
        tokenizer, model = task.load("")
        tokenizer.save_pretrained(tmp_path)
        model.save_pretrained(tmp_path)

        again, loaded = task.load(str(tmp_path))

        texts = task.notes(0, 4)[0]
        assert (task.outputs(again, loaded, texts) == task.outputs(tokenizer, model, texts)).all()
        assert sorted(task.head_of(loaded)) == ["classifier.bias", "classifier.weight"]


@pytest.fixture(scope="module")
def flwr(tmp_path_factory):
    """One local SuperLink for all apps, as a developer has it."""
    with local_superlink(tmp_path_factory.mktemp("flower")) as flower:
        yield flower


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("app", APPS)
def test_flwr_run_with_two_supernodes_says_the_same(app, flwr):
    needs_transformers(app)
    shutil.copytree(ROOT / "examples" / app, flwr.folder / app, ignore=shutil.ignore_patterns("__pycache__"))

    said, status = flwr("run", app)

    assert status == "finished:completed", said
    assert "2 simulated SuperNodes" in said
    check(app, said)


OURS = "from fedsmall.sim import run\nfrom fedsmall.clients import HospitalClient\n"
NAMESAKES = {
    "strategies/__init__.py": "PERIOD = 2\n",
    "clients/__init__.py": "",  # without one, a folder of a checkout comes first
    "clients/mine.py": "from client_app import app\n\n__all__ = ['app']\n",
    "sim.py": 'WORD = "of the app"\n',
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flwr_run_of_an_app_with_folders_of_our_names_has_its_own_and_ours(flwr):
    app = make_app(flwr.folder / "namesakes", NAMESAKES)
    for name in ("client_app.py", "server_app.py", "pyproject.toml", "LICENSE", "README.md"):
        text = (ROOT / "examples" / "flower_app" / name).read_text()
        text = text.replace("client_app:app", "clients.mine:app").replace("daisy-chained-hospitals", "namesakes")
        text = text.replace('permute_every=settings["permute-every"]', "permute_every=strategies.PERIOD")
        if name == "server_app.py":
            told = '    print("Sim", sim.WORD, run.__module__, HospitalClient.__module__, DaisyChain.__module__)\n'
            text = text.replace("import torch\n", f"import sim\nimport strategies\nimport torch\n{OURS}") + told
        (app / name).write_text(text)

    said, status = flwr("run", "namesakes")

    assert status == "finished:completed", said
    check("flower_app", said)
    assert "Sim of the app fedsmall.sim.api fedsmall.clients.hospital fedsmall.strategies.daisy_chain" in said


def check(app: str, said: str) -> None:
    rounds = settings(app)["num-server-rounds"]
    assert not re.search(r"Traceback|\bnan\b|ERROR", said)
    told = re.split(r"\[ROUND \d+/\d+\]", said)[1:]
    assert len(told) == rounds
    for one in told:
        assert re.search(r"MetricRecord: \{'train_loss': \d\.\d+", one)
    assert float(re.findall(r"Accuracy on what the hospitals held out: ([01]\.\d+)", said)[0]) > 0.9
