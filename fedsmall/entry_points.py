"""What stands beside the core: entry points, ours (``extensions/``) and anybody's, and a user's own functions.

Groups of entry points, and what an entry of each is:

- ``fedsmall.commands``: a Typer app or a function, the command of that name.
- ``fedsmall.methods``: a :class:`fedsmall.methods.MethodRow`; ``fedsmall.aggregators``: a
  :class:`fedsmall.aggregation.aggregate.Aggregator`; ``fedsmall.tasks``: a function of a data root and a seed that
  gives a pool of samples; ``fedsmall.topologies``: a :class:`fedsmall.algorithm.topologies.Topology` without a server,
  most easily :class:`fedsmall.algorithm.gossip.Peers` with other ``PLACES``. Each is known by its name wherever ours
  are; a name of ours stays ours.
- ``fedsmall.trainers``: a module, what a method trains in place of a network, by the method's key that asks for it:
  ``plan_among(plan, sites)``, ``check(plan, task)``, ``trainer_for(plan, task, names, samples, indices)``,
  ``combiner_for(plan)``, ``has_ended(plan, model)``, whether nothing would change any more, and what a reader should
  know or "": ``note_of(method)``, and ``note_of_end(plan, model, rounds)`` of what came out.
- ``fedsmall.models``: a function of a task, and of options by keyword, that builds a module: the model of that name.
- ``fedsmall.watchers``: a function of a run's folder (or None) that gives a function of a run and its record of a plan,
  called as each plan ends: what the ``track`` of a scenario names.
- ``fedsmall.pages``: a module whose ``part(run, name)`` is the section ``name`` of a run's page, as Markup.
- ``fedsmall.audits``: a function of a run's folder at a site, the site's name and the path of its data that gives
  what the site finds out about its own patients, with ``lines()``.
- ``fedsmall.scenarios``: a module, what is run by the command of that name, and, where it has ``run(path, out,
  settings)``, in one process, and ``check_site(scenario, site, data, policy, has_identity=...)``, lines of what a site
  would do, also where a scenario's task has a key of that name; over real sites, where NAME.json is the ``Sheet`` in a
  run's folder, ``load(path, settings)``, ``prepare(folder, run, scenario, **patience)``, ``conduct(sheet, folder,
  grid)``, which gives the outcome and a last log line, ``write_run(folder, outcome)``, ``outcome_lines(home,
  outcome)``; for a hospital's own page ``site_part(folder, site)`` or None, and ``LEAVES``, what leaves a site.
- ``fedsmall.tables``: a module that reads files with that ending: ``read(path)`` gives a pandas table, ``query(path)``
  the text by which it was asked for, which a site's log keeps.
- ``fedsmall.handlers``: a class that answers what a site is asked of that kind: made of the site's name, its data, its
  encryption and its consent, with ``answer(policy, config, arrays)``.
"""

import importlib
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from fedsmall import project_in
from fedsmall.errors import DataError, PlanError, PolicyError

T = TypeVar("T")
SCENARIOS, HANDLERS, TABLES = "fedsmall.scenarios", "fedsmall.handlers", "fedsmall.tables"


_allowed: ContextVar[Collection[str] | None] = ContextVar("functions that a plan may name", default=None)
_installed, _project = cache(entry_points), cache(project_in)  # every package's file is read for them


@cache
def extensions(group: str) -> dict[str, EntryPoint]:
    """The entries of a group ("fedsmall.commands") by their names, in the order of the names; none is loaded."""
    entries = {entry.name: entry for entry in _installed().select(group=group)}
    ours = _project().get("entry-points", {}).get(group, {})  # a checkout may not be installed
    entries |= {name: EntryPoint(name, value, group) for name, value in ours.items()}
    return dict(sorted(entries.items()))


def load_extension(group: str, name: str) -> Any:
    """What an entry of a group stands for, imported now. Raises PlanError where nothing of that name is installed."""
    known = extensions(group)
    if name not in known:
        raise PlanError(f"no extension of {group} is called {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name].load()


class Registry(Mapping[str, T]):
    """What is known by name: ``ours``, and what packages bring as entries of a ``group``, loaded when asked for."""

    def __init__(self, group: str, ours: Mapping[str, T]) -> None:
        self._group, self._ours = group, ours

    def __getitem__(self, name: str) -> T:
        """That of a name; KeyError for one that is not known."""
        if name in self._ours or name not in extensions(self._group):
            return self._ours[name]
        return load_extension(self._group, name)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        """The names, ours first."""
        return iter(dict.fromkeys([*self._ours, *extensions(self._group)]))

    def __len__(self) -> int:
        """How many are known."""
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        """Whether a name is known; nothing is loaded for it."""
        return name in self._ours or name in extensions(self._group)


def import_extra(extra: str, module: str) -> Any:
    """A module that an extra of ours brings, as "ray" does ray. Raises PlanError, which names the extra, without it."""
    try:
        found = importlib.import_module(module)
        if getattr(found, "__file__", None) is None:  # a folder of that name that merely lies here
            raise ModuleNotFoundError(name=module)
        return found
    except ModuleNotFoundError as wrong:
        missing = (wrong.name or module).partition(".")[0]
        raise PlanError(f"this needs {missing}, which is not installed: pip install 'fedsmall[{extra}]'") from wrong


def kind_of_run(folder: Path) -> str | None:
    """The extension whose sheet lies in the folder of a run; None for models that travel."""
    return next((kind for kind in extensions(SCENARIOS) if (folder / f"{kind}.json").is_file()), None)


def kind_of_scenario(table: Mapping[str, Any]) -> str | None:
    """The extension whose key the task of a scenario's table has; None for models that travel."""
    task = table.get("task")
    kinds = [kind for kind in extensions(SCENARIOS) if isinstance(task, Mapping) and kind in task]
    return next((kind for kind in kinds if hasattr(load_extension(SCENARIOS, kind), "run")), None)


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Make whatever a user's own function raises within a PlanError of one line; ``what`` says which function it is."""
    try:
        yield
    except (PlanError, DataError, PolicyError):
        raise
    except Exception as wrong:
        place = traceback.extract_tb(wrong.__traceback__)[-1]
        message = " ".join(str(wrong).split())[:200] or "no reason"
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise PlanError(f"{what} raised {type(wrong).__name__}: {message} ({where})") from wrong


@contextmanager
def allow_functions(named: Collection[str]) -> Iterator[None]:
    """Let :func:`own_function` find these alone within: what else a plan of others names is not even imported."""
    before = _allowed.set(named)
    try:
        yield
    finally:
        _allowed.reset(before)


def own_function(what: str, words: str) -> Any:
    """What stands in a user's module, by "module:function". Raises PlanError, with ``what`` it is for, for none."""
    if (allowed := _allowed.get()) is not None and words not in allowed:
        raise PolicyError(f"the policy here lets no plan name {words!r} (functions)")
    module, _, function = words.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as wrong:
        raise PlanError(f"{what} {words!r} was not found: {wrong}. It is written as module:function.") from wrong


def look_in(*folders: Path) -> None:
    """Find a user's modules in these folders first; in one with a ``fedsmall`` of its own, which is not ours, last."""
    ours = [folder for folder in folders if (folder / "fedsmall").is_dir() or (folder / "fedsmall.py").is_file()]
    sys.path[:0] = [str(folder) for folder in folders if folder not in ours]
    sys.path += map(str, ours)
