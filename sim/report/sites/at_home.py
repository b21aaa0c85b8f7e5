"""What a run over real sites shows on its page: every figure is of patients who never left their hospital."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.outcomes import kind_of
from fedsmall.evaluation.clinical import AtThreshold, Estimate, of_counts, wilson
from fedsmall.sim.report.clinical.shown import HALF, class_names
from fedsmall.sim.report.sentences import named
from fedsmall.sim.runs.folder import PlanRun, Run

NONE = Estimate(float("nan"), float("nan"), float("nan"))
LEAST_TOLD = 0.0005  # of what bins may hide of an AUC
COUNTED = ("answers", "refused", "silent", "sent", "came")
SHOWN = ("kappa", "auc", "accuracy", "balanced_accuracy", "brier", "loss", "ece", "mae", "rmse")
OF_LABELS = ("auc", "macro_f1", "subset_accuracy", "label_accuracy", "brier", "loss")
WORDS = {"loss": "loss", "ece": "calibration error (ECE)"}


class Home(NamedTuple):
    """One hospital: how many it ``trained`` on, as it said, and on how many it judged the model; what that came to.

    ``brier`` is NaN where there is none; ``errors`` are at even odds, None where classes are not two.
    """

    site: str
    trained: int | None
    judged: int
    area: Estimate
    accuracy: Estimate
    errors: AtThreshold | None
    brier: float


class Line(NamedTuple):
    """One hospital's messages: how many it answered, refused, or left unanswered; bytes each way, what was charged."""

    site: str
    answers: int
    refused: int
    silent: int
    sent: int
    came: int
    charged: str


class Over(NamedTuple):
    """A metric over all patients that were judged, with its interval over hospitals (None: there is none)."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class AtHome:
    """One run over real sites, as its page shows it; ``classes`` or ``labels`` are the names of what is predicted."""

    one: PlanRun
    classes: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @property
    def real(self) -> dict[str, Any]:
        """What only a run over real sites has."""
        found: dict[str, Any] = self.one.row["real"]
        return found

    @property
    def together(self) -> dict[str, Any]:
        """What the sums of all sites say; empty where none were told."""
        found: dict[str, Any] = self.real.get("judged", {}).get("together", {})
        return found

    @property
    def two(self) -> bool:
        """Whether there are two classes."""
        return len(self.classes) == 2

    @property
    def matrix(self) -> list[list[int]]:
        """How many of each class (rows) are called what, at even odds; empty where no classes are told."""
        return list(self.together.get("called", ()))

    @property
    def errors(self) -> AtThreshold | None:
        """All patients together at even odds."""
        return _errors(self.together)

    @property
    def homes(self) -> list[Home]:
        """Every hospital that has told sums, by name."""
        judged = self.real.get("judged", {}).get("sites", {})
        return [_home(site, self.real["sites"].get(site, {}), judged[site]) for site in sorted(judged)]

    @property
    def hidden(self) -> bool:
        """Whether nobody was told more than what all hospitals say together."""
        return bool(self.real.get("judged", {}).get("hidden"))

    @property
    def silent(self) -> list[str]:
        """The hospitals that have told no sums: they were away, hold too few out, or their policy lets none be told.

        Nobody knows where what each told is hidden.
        """
        return (
            [] if self.hidden else sorted(set(self.real["sites"]) - set(self.real.get("judged", {}).get("sites", {})))
        )

    @property
    def lines(self) -> list[Line]:
        """The messages of every hospital, by name."""
        return [_line(site, told, self.one) for site, told in sorted(self.real["sites"].items())]

    @property
    def metrics(self) -> list[Over]:
        """The metrics of all patients together."""
        over, values = self.together.get("over_sites", {}), self.together.get("metrics", {})
        shown = OF_LABELS if self.labels else SHOWN
        found = [(name, values[name], over.get(name) or {}) for name in shown if name in values]
        return [
            Over(WORDS.get(name, named(name)), value, ends.get("low"), ends.get("high")) for name, value, ends in found
        ]

    @property
    def when(self) -> str:
        """When the contacts were, how long one took, and how often the run was begun."""
        seconds = [each[1] for each in self.real["contacts"]]
        if not seconds:
            return "No contact is in the log."
        span = f"{_minute(self.real['started'])} to {_minute(self.real['ended'])} UTC"
        times = f"median {np.median(seconds):.2g} s, longest {max(seconds):.2g} s"
        again = self.real["launches"] - 1
        resumed = f" It was resumed {'once' if again == 1 else f'{again} times'}." if again > 0 else ""
        return f"{len(seconds)} contacts, {span}; from first order to last answer {times}.{resumed}"


def at_home(run: Run) -> list[AtHome]:
    """The runs over real sites among those of a page."""
    labels = tuple((run.about.get("task") or {}).get("labels") or ())
    return [AtHome(one, class_names_of(run), labels) for one in run.done if "real" in one.row]


def real_sentences(run: Run) -> list[str]:
    """A line for each run over real sites: of whom its figures are, and how exact."""
    return [_sentence(home) for home in at_home(run)]


def _sentence(home: AtHome) -> str:
    whole, label = home.together, home.one.label
    if not whole:
        return f"{label}: no hospital has told sums, so nothing is known of all patients together."
    exact = (
        f"; its AUC, of binned scores, is at most {whole['auc_error']:.3f} off"
        if whole["auc_error"] >= LEAST_TOLD
        else ""
    )
    hospitals = f"{whole['sites']} hospital{'s' * (whole['sites'] > 1)}"
    return f"{label}: judged at home on {whole['count']} patients whom {hospitals} held out{exact}."


def class_names_of(run: Run) -> tuple[str, ...]:
    """The names of the classes; none where numbers are predicted, or a run of an earlier release does not say."""
    task = run.about.get("task") or {}
    return () if kind_of(task.get("loss", "l1")) != "classes" else class_names(run, int(task["classes"]))


def repeat(run: Run) -> str:
    """The command that runs the same again, or those of the runs that were put side by side."""
    word, how = ("start", "--name ANOTHER") if run.real else ("run", f"--engine {run.about.get('engine')}")
    files = [shlex.quote(f"{place}/scenario.toml") for place in run.about.get("places", [run.place])]
    return "\n".join(f"fedsmall {word} {file} {how}" for file in files)


def _home(site: str, told: Mapping[str, Any], judged: Mapping[str, Any]) -> Home:
    matrix = np.array(judged.get("called", [[0]]))
    metrics = judged["metrics"]
    return Home(
        site,
        told.get("samples"),
        judged["count"],
        Estimate(*judged["auc"]) if "auc" in judged else NONE._replace(value=metrics.get("auc", float("nan"))),
        wilson(int(np.trace(matrix)), int(matrix.sum())),
        _errors(judged),
        metrics.get("brier", float("nan")),
    )


def _errors(judged: Mapping[str, Any]) -> AtThreshold | None:
    matrix = judged.get("called", [])
    if len(matrix) != 2:
        return None
    (tn, fp), (fn, tp) = matrix
    return of_counts(HALF, tp, fp, fn, tn)


def _line(site: str, told: Mapping[str, Any], one: PlanRun) -> Line:
    answers, refused, silent, sent, came = (int(told.get(name, 0)) for name in COUNTED)
    return Line(site, answers, refused, silent, sent, came, _charged(told.get("charged", {}), one))


def _charged(told: Mapping[str, float], one: PlanRun) -> str:
    privacy = one.plan.method.privacy
    if privacy is None or not privacy.counted:
        return "no ledger"
    if not told:
        return "not told"
    if "steps" in told:
        words = f"{told['steps']:g} local steps"
    else:
        spent = f"epsilon {told['epsilon']:.3g} at delta {told['delta']:g}, " if "epsilon" in told else ""
        words = f"{spent}{told.get('releases', 0):g} releases"
    return words + (f"; its limit is {told['most']:g}" if "most" in told else "")


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")
