"""The reference of the Python interface: what each package's ``__all__`` names, from its docstrings."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple


class Interface(NamedTuple):
    """A package that users import from: for whom, and what it is for."""

    readers: str
    about: str


PACKAGES = {
    "fedsmall": Interface("hospital data scientists and researchers", "Runs, their results, and saved models."),
    "strategies": Interface("Flower developers", "Flower strategies, for a ServerApp of one's own."),
    "clients": Interface("Flower developers", "The Flower client that speaks for a hospital."),
}
VERSIONS = "__version__"  # a text, with nothing to say of itself


def pages() -> dict[str, str]:
    """A page for each package, by its place."""
    return {f"reference/{package}.md": page(package) for package in PACKAGES}


def page(package: str) -> str:
    """The public names of a package, each with its signature and its docstring."""
    readers, about = PACKAGES[package]
    shown = import_name(package)
    head = f"# {shown}\n\n*For {readers}.*\n\n{about}\n"
    entries = [_entry(shown, name, value) for name, value in public(package).items()]
    return "\n".join([head, *entries])


def import_name(package: str) -> str:
    """What a user imports a package by."""
    inner = f"fedsmall.{package}"
    return inner if package != "fedsmall" and find_spec(inner) else package


def public(package: str) -> dict[str, Any]:
    """What each name of a package's ``__all__`` stands for, its version left out."""
    module = import_module(package)
    return {name: getattr(module, name) for name in module.__all__ if name != VERSIONS}


def _entry(shown: str, name: str, found: Any) -> str:
    """Where mkdocstrings finds a name, and how it heads it; of an object that is made, what it is."""
    if not hasattr(found, "__qualname__"):
        kind = type(found)
        return f"## {shown}.{name}\n\nA `{kind.__name__}` of `{kind.__module__}`.\n"
    options = {"heading": f"{shown}.{name}", "toc_label": name, "heading_level": 2}
    lines = [f"      {key}: {value}" for key, value in options.items()]
    return "\n".join([f"::: {_place(found)}", "    options:", *lines, ""])


def _place(found: Any) -> str:
    place = f"{found.__module__}.{found.__qualname__}"
    inner = place.removeprefix("fedsmall.")  # fedsmall.sim is another name of sim, whose files are what is read
    return inner if inner.partition(".")[0] in (*PACKAGES, "sim") else place
