"""The commands of ``fedsmall``: where each is, and one line on what it does; none is imported before it is called."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from fedsmall.entry_points import extensions, load_extension


class Entry(NamedTuple):
    """A command: ``place`` is ".module:name" of a function or a Typer app in this folder.

    In :data:`REPOSITORY` it is the full name, and an extension's is "fedsmall.commands:name".
    """

    place: str
    help: str
    panel: str

    @property
    def module(self) -> str:
        """The module of the command."""
        return self.place.partition(":")[0]

    def is_here(self) -> bool:
        """Whether the command can be called: some come with the repository and not with the wheel."""
        if self.module == EXTENSION:
            return self.place.partition(":")[2] in extensions(EXTENSION)
        if self.module.startswith(f"{REPOSITORY}."):
            return find_spec(REPOSITORY) is not None
        return find_spec(self.module, __package__) is not None

    def load(self) -> Any:
        """The function or the app, imported now."""
        module, _, name = self.place.partition(":")
        if module == EXTENSION:
            return load_extension(EXTENSION, name)
        return getattr(import_module(module, __package__), name)


EXTENSION = "fedsmall.commands"  # the entry points of commands that are not ours alone to give
REPOSITORY = "fedsmall.research"  # the folder of what is in no wheel
RUN, STUDY, LIVE = "Run and compare", "Evidence and speed", "A consortium of real sites"

COMMANDS: dict[str, Entry] = {
    "demo": Entry(".run:demo", "Seven methods on two data sets: what federation, and daisy-chaining, are worth.", RUN),
    "new": Entry(".new:new", "Look at a table, and write a first scenario for it.", RUN),
    "run": Entry(".run:run", "Run a scenario and write its report.", RUN),
    "compare": Entry(".run:compare", "Put finished runs side by side, with paired differences.", RUN),
    "retrain": Entry(".run:retrain", "A run again without a hospital that leaves, from the same seeds.", RUN),
    "report": Entry(".run:report", "Regenerate the report of a run, from its folder.", RUN),
    "predict": Entry(".predict:predict", "What saved models say of new rows: probabilities and a class.", RUN),
    "columns": Entry(
        "fedsmall.commands:columns", "Boosted trees over columns that several parties hold of the same patients.", RUN
    ),
    "export": Entry(".predict:export", "A saved model as one file: ONNX, TorchScript, or a .zip.", RUN),
    "plan": Entry(".plan:plan", "How many rounds between aggregations, by the papers' bounds.", RUN),
    "list": Entry(".listing:listing", "The methods, tasks and scenarios that are bundled.", RUN),
    "schema": Entry(".listing:schema", "The keys of a scenario as a JSON schema, for editors.", RUN),
    "audit": Entry(
        "fedsmall.commands:audit", "What each party can learn of a patient: the methods of a scenario, attacked.", STUDY
    ),
    "bench": Entry(
        "fedsmall.research.bench.command:bench",
        "Measure the engines against each other and against other frameworks.",
        STUDY,
    ),
    "describe": Entry("fedsmall.commands:describe", "A first table of all patients over sites, before any model.", RUN),
    "choose": Entry(".tune:choose", "Which class of models to take: regressions, trees or a network.", RUN),
    "tune": Entry(".tune:tune", "Choose learning rates on the training sites alone.", STUDY),
    "reproduce": Entry(
        "fedsmall.research.evidence.command:reproduce",
        "The papers' tables and figures, measured beside published.",
        STUDY,
    ),
    "consortium": Entry(".consortium:app", "Make a consortium, admit and revoke sites.", LIVE),
    "server": Entry(".consortium:server_app", "The coordinator's server: up, down, status.", LIVE),
    "site": Entry(".site:app", "A hospital's side: keygen, check, up, down, log.", LIVE),
    "start": Entry(".deploy:start", "Run a scenario over real sites.", LIVE),
    "resume": Entry(".deploy:resume", "Go on with a run, over real sites or simulated, that ended early.", LIVE),
    "status": Entry(".deploy:status", "The runs over real sites, and who is connected.", LIVE),
    "stop": Entry(".deploy:stop", "Stop a run over real sites; it can be resumed.", LIVE),
    "dashboard": Entry(
        "fedsmall.commands:dashboard", "A page for the coordinator's browser: sites, rounds, models, budgets.", LIVE
    ),
    "logs": Entry(".deploy:logs", "The orders and answers of a run over real sites.", LIVE),
}


def from_repository(module: str) -> Any:
    """A module of :data:`REPOSITORY`; None where the wheel alone is installed. Nothing else of ours asks for one."""
    return import_module(f"{REPOSITORY}.{module}") if find_spec(REPOSITORY) else None
