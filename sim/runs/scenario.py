"""A scenario: a TOML file that says what is run, as a frozen record, checked when built; a plan per method and seed."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict

import tomli_w
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedsmall.entry_points import kind_of_scenario
from fedsmall.errors import DataError, PlanError
from fedsmall.files import read_toml
from fedsmall.methods import METHODS, explain, method, nearest
from fedsmall.parts import Device, EarlyStop, Frozen, Recipe
from fedsmall.plan import Method, Plan, Shared

LONGEST_NAME = 100
OF_THE_RUN = {"about", "seeds", "engine", "device", "keep", "track", "reference", "study"}  # no part of a plan
OF_METHODS = {"initial_models", "stop", "metric", "threshold", "recalibrate", "reference"}  # which others need not have
SHIPPED = Path(__file__).parents[1] / "scenarios"  # the scenarios that come along
UNNAMED = "(your files)"
FILES = ("csv", "npz", "images", "test")  # keys of a task that name files, relative to the scenario's own folder


class Study(Frozen):
    """What a reader must know of a study and no program can say; each text is an answer to an item of TRIPOD+AI.

    With an ``intended_use`` the run is of a model for patients, and else a comparison of methods.
    """

    abstract: str = ""
    background: str = ""
    source: str = ""
    setting: str = ""
    eligibility: str = ""
    outcome: str = ""
    assessors: str = ""
    predictors: str = ""
    sample_size: str = ""
    fairness: str = ""
    ethics: str = ""
    funding: str = ""
    registration: str = ""
    involvement: str = ""
    flow: str = ""
    interpretation: str = ""
    intended_use: str = ""


class Settings(TypedDict, total=False):
    """The keys of a scenario for :func:`fedsmall.run`, all optional, as an editor completes them."""

    name: str
    about: str
    task: Any
    model: Any
    model_options: Mapping[str, Any]
    samples_per_site: int
    partition: str | Mapping[str, Any]
    rounds: int
    seeds: Sequence[int]
    route_seed: int
    evaluate_every: int
    initial_models: Literal["common", "independent"]
    dtype: Literal["float32", "float64"]
    metric: str
    threshold: float | Literal["youden"] | Mapping[str, float]
    recalibrate: bool
    folds: int
    without: Sequence[str]
    stop: EarlyStop | Mapping[str, Any]
    device: str
    keep: Literal["common", "sites"]
    track: Literal["tensorboard", "mlflow"]
    reference: str
    study: Study | Mapping[str, Any]
    recipe: Recipe | Mapping[str, Any]
    method: Sequence[Mapping[str, Any]]


class Scenario(Shared):
    """What is run: task, partition, methods, recipe, seeds. The fields are the keys of the file.

    A method's table holds its name, its settings, and a ``recipe`` of its own where it departs from the scenario's
    (every method has its own best learning rate), or a ``stop`` of its own, ``false`` for none. ``metric`` is what
    methods are judged by, such as "auc"; by default accuracy, or the AUC where classes are unequal. From probability
    ``threshold`` on a sample is called positive, and ``recalibrate`` mends its log-odds first. ``stop`` ends runs
    early. ``folds`` asks for cross-validation; ``about`` is one sentence; ``reference`` is the label of the method that
    tables measure the others against. ``route_seed`` draws who is where, by default the seed. ``engine`` and ``device``
    say on what a simulation runs, and are no part of a plan: at real sites a device is the site's own matter. ``keep``
    says which models are saved at the end: the global ones and Central's, or beside them the sites' own. ``track``
    names a tool that is told of every plan (:mod:`fedsmall.extensions.tracking`). ``study`` goes into the report.
    """

    about: str = ""
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (0,)
    engine: str | None = None
    device: Device = "cpu"
    keep: Literal["common", "sites"] = "common"
    track: Literal["tensorboard", "mlflow"] | None = None
    reference: str | None = None
    study: Study = Study()
    method: tuple[dict[str, Any], ...]

    @field_validator("seeds", "method", mode="before")
    @classmethod
    def _listed(cls, value: Any, info: ValidationInfo) -> Any:
        example = "seeds = [0, 1, 2]" if info.field_name == "seeds" else 'a table [[method]] with name = "FedDC"'
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"a list of at least one is expected: {example}")
        return value

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("no name at all, and a run's folder has this name: say one")
        if len(name) > LONGEST_NAME:
            raise ValueError(f"{len(name)} letters, and a run's folder has this name: {LONGEST_NAME} letters at most")
        return name

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is listed twice; equal seeds give equal runs, not more evidence")
        return seeds

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        labels = [self.plan(index, self.seeds[0]).method.label for index in range(len(self.method))]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise PlanError(f'two methods are called {twice!r}; give one of them a name of its own: label = "..."')
        if self.reference is not None and self.reference not in labels:
            raise PlanError(f"reference: no method has the label {self.reference!r}. {nearest(self.reference, labels)}")
        return self

    def plan(self, index: int, seed: int, fold: int = 0) -> Plan:
        """The plan of the method at ``index`` with one seed (and one fold)."""
        named, recipe, stop = self._resolved(index)
        shared = self.model_dump(exclude=OF_THE_RUN | {"recipe", "method", "stop"})
        return Plan(**shared, seed=seed, fold=fold, recipe=recipe, stop=stop, method=named)

    def plans(self) -> list[Plan]:
        """All runs of the scenario: seeds, in them folds, in them methods in the order of the file."""
        order = product(self.seeds, range(self.folds or 1), range(len(self.method)))
        return [self.plan(index, seed, fold) for seed, fold, index in order]

    def _resolved(self, index: int) -> tuple[Method, Recipe, EarlyStop | None]:
        settings = dict(self.method[index])
        recipe, stop = settings.pop("recipe", {}), settings.pop("stop", self.stop)
        if not isinstance(settings.get("name"), str):
            raise PlanError(f'method {index + 1} of the scenario has no name; say which, name = "FedDC"')
        named = method(**settings)
        if not isinstance(recipe, Mapping):
            raise PlanError(f"Method {named.label!r}: recipe is a table, as in recipe = {{lr = 0.1}}; got {recipe!r}")
        try:
            common = overlay(self.recipe.model_dump(exclude_defaults=True), METHODS[named.name].recipe)
            return named, Recipe(**overlay(common, recipe)), _stop_of(named, stop)
        except ValidationError as error:
            raise PlanError(f"Method {named.label!r}, recipe: {explain(error, Recipe)}") from None


def _stop_of(named: Method, stop: Any) -> EarlyStop | None:
    """When a method's runs end early, as its table says or the scenario."""
    if stop is None or stop is False or isinstance(stop, EarlyStop):
        return stop or None
    if not isinstance(stop, Mapping):
        raise PlanError(f"Method {named.label!r}: stop is {{patience = 3, hold_out = 0.2}}, or false; got {stop!r}")
    try:
        return EarlyStop(**stop)
    except ValidationError as error:
        raise PlanError(f"Method {named.label!r}, stop: {explain(error, EarlyStop)}") from None


def of_plan(plan: Plan, about: str = "") -> Scenario:
    """The scenario of this one plan."""
    shared = {name: value for name, value in plan if name not in ("method", "recipe", "seed", "fold")}
    named = plan.method.model_dump(exclude={"validation"}, exclude_none=True)
    if plan.method.validation is not None:
        named["validate"] = plan.method.validation.model_dump(exclude_none=True)
    known = METHODS[plan.method.name].parts if plan.method.name in METHODS else {}
    fresh = Method(name=plan.method.name).model_dump()
    named = {key: value for key, value in named.items() if key in known or fresh.get(key) != value or key == "name"}
    table = {**named, "recipe": plan.recipe.model_dump(exclude_none=True)}
    return build({**shared, "about": about, "seeds": [plan.seed], "method": [table]})


def overlay(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with some keys set anew; a round counted in epochs replaces one counted in steps, and the other way."""
    merged = {**recipe, **changes}
    for kept, dropped in (("local_epochs", "local_steps"), ("local_steps", "local_epochs")):
        if kept in changes and dropped not in changes:
            merged.pop(dropped, None)
    return merged


def build(table: Mapping[str, Any]) -> Scenario:
    """The scenario of a table of keys; PlanError, one line, where a key or value is wrong."""
    try:
        return Scenario(**table)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        if isinstance(cause, PlanError):  # raised by one of our own validators: its text is already for the user
            raise PlanError(str(cause)) from None
        inner = cause if isinstance(cause, ValidationError) else error
        raise PlanError(explain(inner, Scenario)) from None
    except TypeError as error:
        raise PlanError(str(error)) from None


def without_files(task: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """A task as it may be shown: its files, whose names are a site's own matter, are not named."""
    return task if isinstance(task, str) else {key: UNNAMED if key in FILES else value for key, value in task.items()}


def shown_scenario(scenario: Scenario) -> dict[str, Any]:
    """The keys of a scenario as a report may show them."""
    shown = scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return _named_first(shown | {"task": without_files(shown["task"])})


def _named_first(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: keys[key] for key in sorted(keys, key=lambda key: key not in ("name", "about"))}


def to_toml(value: Any) -> str:
    """A value as it stands behind a key of TOML, in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_toml(str(key))} = {to_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def as_toml(scenario: Frozen) -> bytes:
    """A scenario as a file that :func:`load` reads; what is as by default is left out."""
    text = scenario.model_dump_json(exclude_none=True, exclude_defaults=True)
    known = json.loads(text, object_hook=lambda of: {k: v for k, v in of.items() if v is not None})  # of options, too
    return tomli_w.dumps(_named_first(known)).encode()


def load(path: Path | str, settings: Sequence[str] = (), methods: Sequence[Mapping[str, Any]] = ()) -> Scenario:
    """The scenario in a file, ``settings`` ("recipe.lr=0.1") laid over it; PlanError for what cannot be read or run.

    ``methods`` stand for those of a file that has none.
    """
    path = Path(path)
    table = ({"method": list(methods)} if methods else {}) | read(path)
    if kind := kind_of_scenario(table):
        raise PlanError(f"{path.name} is of `fedsmall {kind}`: run, start and site check take it, no other command.")
    for setting in settings:
        table = assign(table, setting)
    if isinstance(table.get("task"), dict):
        files = {key: _absolute(value, path.parent) for key, value in table["task"].items() if key in FILES}
        table["task"] = table["task"] | files
    try:
        return build(table)
    except PlanError as error:
        raise PlanError(f"{path.name}: {error}") from None


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return read_toml(path)
    except FileNotFoundError:
        beside = [file.name for file in path.parent.glob("*.toml")] if path.suffix else scenarios()
        like = get_close_matches(path.name if path.suffix else path.as_posix(), beside, n=1)
        hint = f"Did you mean {like[0]!r}?" if like else "`fedsmall list scenarios` shows those that are bundled."
        raise PlanError(f"There is no scenario {path}. {hint}") from None
    except IsADirectoryError:
        raise PlanError(f"{path} is a folder; a scenario is a .toml file.") from None
    except DataError as error:
        raise PlanError(str(error)) from None
    except ValueError as error:
        raise PlanError(f"{path.name} is not TOML: {error}") from None


def assign(table: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """``table`` with one dotted key set anew; a method is reached by its label, name or place (method.FedDC.lr)."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise PlanError(f"--set takes key=value, as in --set recipe.lr=0.1; got {setting!r}")
    return dict(_with(table, key.strip().split("."), value_of(text.strip()), key.strip()))


def value_of(text: str) -> Any:
    """A value as TOML writes it; what is not TOML is a word (engine=ray)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with(node: Any, words: Sequence[str], value: Any, key: str) -> Any:
    if not words:
        return value
    if isinstance(node, Mapping):
        return {**node, words[0]: _with(node.get(words[0], {}), words[1:], value, key)}
    if isinstance(node, list) and all(isinstance(entry, Mapping) for entry in node):
        index = _place(node, words[0], key)
        return [_with(entry, words[1:], value, key) if i == index else entry for i, entry in enumerate(node)]
    raise PlanError(f"--set {key}: {words[0]!r} is no key here, for what holds it is no table")


def _place(tables: Sequence[Mapping[str, Any]], word: str, key: str) -> int:
    for field in ("label", "name"):
        if word in (words := [entry.get(field) for entry in tables]):
            return words.index(word)
    if word.isdigit() and int(word) < len(tables):
        return int(word)
    known = [str(entry.get("label", entry.get("name"))) for entry in tables]
    raise PlanError(f"--set {key}: no entry is called {word!r}. {nearest(word, known)}")


def _absolute(value: Any, folder: Path) -> Any:
    """Names of files as absolute paths, where they are in ``folder``."""
    if isinstance(value, list):
        return [_absolute(entry, folder) for entry in value]
    if isinstance(value, dict):
        return {name: _absolute(entry, folder) for name, entry in value.items()}
    if isinstance(value, str):
        try:
            beside = (folder / value).resolve()
            return str(beside) if beside.exists() else value  # else it may be under the data root
        except (OSError, ValueError, RuntimeError):  # no such path can be: who reads it says so
            return value
    return value


def scenarios() -> dict[str, Path]:
    """Their files by name, "papers/fig4" for one in a folder below."""
    return {path.relative_to(SHIPPED).with_suffix("").as_posix(): path for path in sorted(SHIPPED.rglob("*.toml"))}


def find(asked: Path) -> Path:
    """The file that is asked for: a path, or the name of a scenario that comes along."""
    if asked.suffix != ".toml" and not asked.exists():
        return scenarios().get(asked.as_posix(), asked)
    return asked
