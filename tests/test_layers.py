"""The walls of the house, read from the imports: who knows whom, no circles, rooms of a size, nothing undeclared."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests import ROOT

# fedsmall <- strategies, clients <- sim <- extensions, research; and which of Flower and Ray each may know.
MAY_IMPORT = {
    "fedsmall": set(),
    "strategies": {"fedsmall", "flwr"},
    "clients": {"fedsmall", "flwr"},
    "sim": {"fedsmall", "strategies", "clients", "flwr", "ray"},
    "extensions": {"fedsmall", "strategies", "clients", "sim", "flwr", "ray"},  # found by entry points
    "research": {"fedsmall", "strategies", "clients", "sim", "extensions", "flwr", "ray"},  # in no wheel
}
PRODUCT = [package for package in MAY_IMPORT if package != "research"]
GUARDED = {*MAY_IMPORT, "flwr", "ray"}
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FULL = 25  # modules in a folder, its __init__ not counted


def modules(top: Path, package: str) -> dict[str, Path]:
    """The files of a package by the names they are imported by."""
    return {
        ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((top / package).rglob("*.py"))
    }


@cache
def imported(path: Path) -> tuple[str, ...]:
    """What a file imports, at its head or in a function; ``from a import b`` gives ``a.b``.

    A package is named by its folder: ``fedsmall.sim.api`` is "sim.api".
    """
    names = _imported(ast.parse(path.read_text()))
    return tuple(re.sub(rf"^fedsmall\.(?=({'|'.join(MAY_IMPORT)})\b)", "", name) for name in names)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: an import says where from, in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_arrows(top: Path) -> list[str]:
    """Every import of a package, of Flower or of Ray that :data:`MAY_IMPORT` does not allow."""
    return [
        f"{module} imports {name}"
        for package, allowed in MAY_IMPORT.items()
        for module, path in modules(top, package).items()
        for name in imported(path)
        if name.partition(".")[0] in GUARDED - {package} - allowed
    ]


def circle(top: Path) -> list[str]:
    """Modules that import each other in a circle, by imports at their heads or in functions; empty where none do."""
    try:
        TopologicalSorter(arrows(top, [*MAY_IMPORT])).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def arrows(top: Path, packages: Sequence[str]) -> dict[str, set[str]]:
    """Which modules of some packages each of them imports, at its head or in a function."""
    ours = {module: path for package in packages for module, path in modules(top, package).items()}
    return {
        module: {known for name in imported(path) if (known := _module_of(name, ours)) and known != module}
        for module, path in ours.items()
    }


def rooms_on_a_circle(top: Path) -> set[str]:
    """The rooms of the product (folders two deep at most) that import each other, straight or by way of others."""
    rooms = {module: _room(top, path) for package in PRODUCT for module, path in modules(top, package).items()}
    reached: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for module, known in arrows(top, PRODUCT).items():
        reached[rooms[module]] |= {rooms[one] for one in known} - {rooms[module]}
    for via in reached:  # Warshall's
        for found in reached.values():
            found |= reached[via] if via in found else set()
    return {room for room, found in reached.items() if room in found}


def _room(top: Path, path: Path) -> str:
    return "/".join(path.relative_to(top).parent.parts[:2])


def size_of(top: Path) -> dict[str, int]:
    """How large the product is, and how tangled: lines, modules, and rooms on a circle."""
    files = [path for package in PRODUCT for path in modules(top, package).values()]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    return {"lines": lines, "modules": len(files), "rooms on a circle": len(rooms_on_a_circle(top))}


def _module_of(name: str, ours: dict[str, Path]) -> str | None:
    return next((known for known in (name, name.rpartition(".")[0]) if known in ours), None)


def full_folders(top: Path) -> dict[str, int]:
    """Folders that hold more modules than one can keep in mind."""
    files = [path for package in MAY_IMPORT for path in modules(top, package).values() if path.name != "__init__.py"]
    rooms = Counter(str(path.parent.relative_to(top)) for path in files)
    return {room: count for room, count in rooms.items() if count > FULL}


def undeclared(files: list[Path], declared: set[str]) -> set[str]:
    """The third-party packages that files import and pyproject.toml does not name, as ``import (distribution)``."""
    installed = packages_distributions()
    foreign = {name.partition(".")[0] for path in files for name in imported(path)}
    of_apps = {path for path in (ROOT / "examples").rglob("pyproject.toml")}
    foreign -= {one.stem for path in of_apps for one in path.parent.iterdir()}  # an app's own modules
    foreign -= {*sys.stdlib_module_names, *MAY_IMPORT, "tests", "examples", "docs"}
    # What is not installed (an extra) is looked for by the name it is imported by.
    return {
        f"{name} ({', '.join(installed.get(name, [name]))})"
        for name in foreign
        if not {normal(one) for one in installed.get(name, [name])} & declared
    }


def normal(requirement: str) -> str:
    """A distribution's name in one spelling, without extras and versions."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def house(tmp_path):
    """Build a small house of our packages with one module changed."""

    def build(**texts: str) -> Path:
        for package in MAY_IMPORT:
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").touch()
        for name, text in texts.items():
            file = (tmp_path / name.replace("__", "/")).with_suffix(".py")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        return tmp_path

    return build


def test_imports_run_one_way():
    assert wrong_arrows(ROOT) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("fedsmall__radon", "import flwr"),
        ("fedsmall__radon", "def late():\n    from fedsmall.strategies.records import row"),
        ("strategies__feddc", "from fedsmall.clients import policy"),
        ("fedsmall__radon", "from fedsmall.sim import run"),
        ("strategies__feddc", "import fedsmall.clients.policy"),
        ("clients__policy", "import fedsmall.strategies.build as build"),
        ("clients__policy", "import ray"),
        ("strategies__feddc", "from fedsmall.sim import run"),
        ("sim__tune", "def late():\n    from fedsmall.research.evidence import items"),
        ("clients__policy", "import fedsmall.research.bench"),
        ("sim__run", "from fedsmall.extensions.columns import party"),
    ],
)
def test_an_arrow_against_the_stream_is_seen(house, module, text):
    assert len(wrong_arrows(house(**{module: text}))) == 1


def test_no_modules_import_each_other():
    assert circle(ROOT) == []


def test_a_circle_is_seen_though_an_import_hides_in_a_function(house):
    top = house(
        sim__a="from fedsmall.sim import b",
        sim__b="from fedsmall.sim.c import x",
        sim__c="def x():\n    import fedsmall.sim.a",
    )

    assert set(circle(top)) == {"sim.a", "sim.b", "sim.c"}


def test_no_folder_holds_more_modules_than_one_can_keep_in_mind():
    assert full_folders(ROOT) == {}


def test_a_full_folder_is_seen(house):
    top = house(**{f"sim__m{number}": "" for number in range(FULL + 1)})

    assert full_folders(top) == {"sim": FULL + 1}


# may only fall; it rose for convolutions in compiled C, and by 79 lines for what runs and real sites say of themselves
MOST = {"lines": 53_125, "modules": 286, "rooms on a circle": 0}
KEYS = [
    "divergence",
    "topology",
    "groups",
    "fraction",
    "snapshots",
    "ema",
    "wire",
    "rule",
    "server",
    "models",
    "route",
    "aggregator",
    "family",
    "privacy",
    "validation",
    "region_count",
    "is_ensemble",
    "tree",
    "hidden",
]
READERS = 8  # modules that may read a key of a method


def test_the_house_grows_no_more():
    found = size_of(ROOT)

    assert {what: count for what, count in found.items() if count > MOST[what]} == {}


def readers_of(top: Path, key: str) -> list[str]:
    """The modules of the product that read a key of a method."""
    reads = re.compile(rf"\bmethod\.{key}\b")
    files = [(module, path) for package in PRODUCT for module, path in modules(top, package).items()]
    return [module for module, path in files if reads.search(path.read_text())]


def test_a_feature_is_read_in_few_modules():
    found = {key: len(readers_of(ROOT, key)) for key in KEYS}

    assert {key: count for key, count in found.items() if count > READERS} == {}


def test_what_grows_is_seen(house):
    tangled = {
        "a__m": "from fedsmall.sim.b import m",
        "b__m": "from fedsmall.sim.c import m",
        "c__m": "def f():\n    import fedsmall.sim.a.m",
    }
    top = house(**{f"sim__{name}": text for name, text in tangled.items()}, sim__alone="import fedsmall.sim.a.m")

    assert size_of(top) == {"lines": 5, "modules": len(PRODUCT) + 4, "rooms on a circle": 3}
    assert rooms_on_a_circle(top) == {"sim/a", "sim/b", "sim/c"}


def test_what_is_in_no_wheel_is_named_by_the_table_of_commands_alone():
    files = [path for package in PRODUCT for path in modules(ROOT, package).values()]

    assert [path.name for path in files if re.search(r"""["']fedsmall\.research\b""", path.read_text())] == [
        "commands.py"
    ]


def unpickling(path: Path) -> list[str]:
    """What in a file could load an object with its code: a module for that, torch.load, NumPy's allow_pickle."""
    found = [name for name in imported(path) if name.partition(".")[0] in PICKLES or name == "torch.load"]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.hub.load"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(ast.unparse(node))
    return found


def test_nothing_is_ever_unpickled():
    files = [path for package in MAY_IMPORT for path in modules(ROOT, package).values()]

    assert {str(path): found for path in files if (found := unpickling(path))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from joblib import load",
        "import torch\nx = torch.load('a')",
        "np.load(p, allow_pickle=True)",
    ],
)
def test_what_would_unpickle_is_seen(house, text):
    assert len(unpickling(house(sim__a=text) / "sim" / "a.py")) == 1


def test_the_product_declares_what_it_imports(project):
    optional = [one for name, group in project["optional-dependencies"].items() if name != "dev" for one in group]
    declared = {normal(one) for one in [*project["dependencies"], *optional]}

    files = [path for package in MAY_IMPORT for path in modules(ROOT, package).values()]

    assert undeclared(files, declared) == set()


def test_the_tests_examples_and_the_manual_declare_what_they_import(project):
    groups = project["optional-dependencies"].values()
    declared = {normal(one) for one in [*project["dependencies"], *(one for group in groups for one in group)]}

    files = [path for folder in ("tests", "examples", "docs/manual") for path in modules(ROOT, folder).values()]

    assert undeclared(files, declared) == set()


def test_an_import_that_nothing_declares_is_seen(house):
    top = house(sim__a="import yaml\nimport numpy as np\nimport os", sim__b="from google.protobuf import message")

    assert undeclared([*modules(top, "sim").values()], {"numpy", "protobuf"}) == {"yaml (PyYAML)"}


if __name__ == "__main__":
    print(size_of(ROOT))
    for name in KEYS:
        print(name, *readers_of(ROOT, name))


def test_tests_that_need_no_torch_are_collected_without_it():
    collect = "pytest.main(['--collect-only', '-q', 'tests/test_layers.py']); print('torch' in sys.modules)"
    program = [sys.executable, "-c", f"import pytest, sys; {collect}"]

    said = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert said.splitlines()[-1] == "False"
