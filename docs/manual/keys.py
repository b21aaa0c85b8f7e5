"""The reference of a scenario's keys: types and defaults from the models, meanings from meanings.toml."""

import tomllib
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from docs.manual.toml import spelled
from fedsmall.features import refused_partners
from fedsmall.parts import Boosting, EarlyStop, Privacy, Recipe, Regions, Regression, Topology, Tree, Validation
from fedsmall.plan import Method
from fedsmall.sim.runs.scenario import Scenario, Study

MEANINGS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("meanings.toml").read_text("utf-8"))


class Section(NamedTuple):
    """A table of a scenario: its heading, its model, and how it stands in the file."""

    heading: str
    model: type[BaseModel]
    about: str


SECTIONS = (
    Section("Scenario", Scenario, "At the top of the file."),
    Section("Recipe", Recipe, "`[recipe]`, or `recipe = {lr = 0.1}`: how a site trains in a round."),
    Section(
        "Method",
        Method,
        "`[[method]]`, once for each. Beside these keys a method may have a `recipe` of its own, laid over the "
        "scenario's, and a `stop` of its own (`false`: to the end). What is not set is as [its name](methods.md) says.",
    ),
    Section("Privacy", Privacy, "`privacy = {...}` under a method. [What helps against whom](../security.md)."),
    Section("Tree", Tree, "`tree = {...}` under a method: [replica trees](../replicas.md)."),
    Section("Boosting", Boosting, "`boosting = {...}` under a method: [boosted trees](../trees.md)."),
    Section("Regression", Regression, "`regression = {...}` under a method: [regressions](../regression.md)."),
    Section("Validation", Validation, "`validate = {...}` under a method."),
    Section(
        "Topology",
        Topology,
        '`topology = {...}`, or the word of `by` alone, or `"server"`: '
        "[without a server](../no-server.md#without-a-server).",
    ),
    Section(
        "Regions",
        Regions,
        "`regions = {...}`, or their number alone: [several servers](../no-server.md#several-servers).",
    ),
    Section("Study", Study, "`[study]`: texts, each the answer to an item of TRIPOD+AI in the report's appendix."),
    Section("Stop", EarlyStop, "`stop = {...}`: [when a run ends](../stopping.md#how-long-to-train)."),
)
HEAD = """# Every key of a scenario

*For researchers and hospital data scientists.*

Made from the models that read the file, so what stands here is what is checked. A key that is not here is refused, with
the nearest that is. `--set recipe.lr=0.1` sets any of them anew on the command line, and each is an argument of
`run()` in Python. What a `task`, a `partition` and `model_options` may say [is told apart](tasks.md).
"""


def page() -> str:
    """All tables of a scenario, key by key."""
    return "\n".join([HEAD, *(_section(section) for section in SECTIONS), _together()])


def _together() -> str:
    rows = [
        f"| `{name}` | {', '.join(f'`{other}`' for other in others)} |" for name, others in refused_partners().items()
    ]
    about = "A plan with two of them is refused before a site trains, in a line that says why. All else goes together."
    return (
        f"## What does not go together\n\n{about}\n\n| feature | does not go with |\n|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _section(section: Section) -> str:
    meanings = MEANINGS[section.model.__name__]
    rows = [_row(key, field, meanings[key]) for key, field in keys_of(section.model).items()]
    head = f"## {section.heading}\n\n{section.about}\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the keys that a file spells."""
    return {_key(name, field): field for name, field in model.model_fields.items()}


def _key(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else name


def _row(key: str, field: FieldInfo, meaning: str) -> str:
    value = kinds(Annotated[field.annotation, *field.metadata]) if field.metadata else kinds(field.annotation)
    return f"| `{key}` | {value} | {_default(field)} | {meaning} |".replace("\n", " ")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True, validated_data={})
    return "" if default is None or default == "" else f"`{spelled(default)}`"


def kinds(annotation: Any, bounds: tuple[Any, ...] = ()) -> str:
    """A type in words, such as "a whole number from 1"; that a key may be left out, its default says."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds(arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        told = [kinds(option, bounds) for option in arguments if option is not NoneType]
        return ", or ".join(dict.fromkeys(told))
    if origin is Literal:
        return ", ".join(f"`{spelled(value)}`" for value in arguments)
    if origin is tuple:
        many = arguments[-1] is Ellipsis
        return f"a list, each {kinds(arguments[0])}" if many else f"a list of {len(arguments)} numbers"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _linked(annotation)
    return _plain(origin or annotation, bounds)


def _linked(model: type[BaseModel]) -> str:
    heading = next(section.heading for section in SECTIONS if section.model is model)
    return f"a table: [{heading}](#{heading.lower()})"


def _plain(kind: Any, bounds: tuple[Any, ...]) -> str:
    words = {bool: "`true` or `false`", str: "a text", int: "a whole number", float: "a number", dict: "a table"}[kind]
    limits = [text for bound in bounds for text in _limit(bound)] if kind in (int, float) else []
    return " ".join([words, *([" and ".join(limits)] if limits else [])])


def _limit(bound: Any) -> list[str]:
    named = (("ge", "from"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    inner = getattr(bound, "metadata", None) or [bound]  # Field(ge=1) inside a type holds its bounds
    return [f"{word} {_plainly(getattr(one, key))}" for one in inner for key, word in named if hasattr(one, key)]


def _plainly(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
