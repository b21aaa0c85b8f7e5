"""The reference of the named methods, from their table."""

from docs.manual.toml import spelled
from fedsmall.methods import METHODS

HEAD = """# Methods by name

*For researchers and hospital data scientists.*

Made from `fedsmall.methods.METHODS`. A method is its parts, and any of them may be set anew under `[[method]]`
([every key](scenario.md#method)); [which one to choose](../methods.md) is another page.

| name | what it does | source | its parts |
|---|---|---|---|
"""


def page() -> str:
    """Every named method: a sentence, the paper, and what differs from plain averaging."""
    return HEAD + "".join(
        f"| `{name}` | {row.summary} | {row.source} | {_parts({**row.parts, **_recipe(row.recipe)})} |\n"
        for name, row in METHODS.items()
    )


def _recipe(recipe: object) -> dict[str, object]:
    return {"recipe": recipe} if recipe else {}


def _parts(parts: dict[str, object]) -> str:
    return "<br>".join(f"`{key} = {spelled(value)}`" for key, value in parts.items())
