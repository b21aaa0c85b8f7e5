"""What a run over real sites shows on its page: every figure is of patients who never left their hospital."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedsmall.data.outcomes import kind_of
from fedsmall.evaluation.clinical import HALF, AtThreshold, Estimate, of_counts, wilson
from fedsmall.sim.report import curves
from fedsmall.sim.report.model import class_names
from fedsmall.sim.report.sections import SMALL, Cells, Section, number, share
from fedsmall.sim.report.sentences import amount, list_words, metric_name, plural
from fedsmall.sim.report.style import looks
from fedsmall.sim.runs.folder import PlanRun, Run

NONE = Estimate(float("nan"), float("nan"), float("nan"))
LEAST_TOLD = 0.0005  # of what bins may hide of an AUC
COUNTED = ("answers", "refused", "silent", "sent", "came")
SHOWN = ("kappa", "auc", "accuracy", "balanced_accuracy", "brier", "loss", "ece", "mae", "rmse")
OF_LABELS = ("auc", "macro_f1", "subset_accuracy", "label_accuracy", "brier", "loss")
WORDS = {"loss": "loss", "ece": "calibration error (ECE)"}


class Home(NamedTuple):
    """A hospital: how many it ``trained`` on and evaluated, and what it told; NaN or None where it has none."""

    site: str
    trained: int | None
    judged: int
    area: Estimate
    accuracy: Estimate
    errors: AtThreshold | None
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RealRun:
    """One run over real sites, by its ``name``; ``classes`` or ``labels`` are the names of what is predicted."""

    plan_run: PlanRun
    name: str
    classes: tuple[str, ...]
    labels: tuple[str, ...] = ()

    @property
    def real(self) -> Any:
        """What only a run over real sites has."""
        return self.plan_run.row["real"]

    @property
    def judged(self) -> Any:
        """What hospitals have told of the model on the patients whom they hold out; empty where none has."""
        return self.real.get("judged", {})

    @property
    def together(self) -> Any:
        """What the sums of all sites say; empty where none were told."""
        return self.judged.get("together", {})

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes."""
        return len(self.classes) == 2

    @cached_property
    def homes(self) -> list[Home]:
        """Every hospital that has told sums, by name."""
        judged, reported = self.judged.get("sites", {}), self.plan_run.row["extra"].get("held_out", {})
        counts = self.real["sites"]
        return [_home(site, counts.get(site, {}), judged[site], reported.get(site, {})) for site in sorted(judged)]

    @property
    def averaged(self) -> list[str]:
        """The metrics of which sums say nothing: means of what the hospitals told."""
        return [name for name in self.plan_run.row["common"] or () if name not in self.together.get("metrics", {})]

    @property
    def silent(self) -> list[str]:
        """Who told no sums: away, too few held out, or by policy; empty where each site's sums are hidden."""
        hidden = self.judged.get("hidden")
        return [] if hidden else sorted(set(self.real["sites"]) - set(self.judged.get("sites", {})))


def real_runs(run: Run) -> list[RealRun]:
    """The runs over real sites among those of a page."""
    task = run.about.get("task") or {}
    has_classes = kind_of(task.get("loss", "l1")) == "classes"  # not numbers, nor what an earlier release does not say
    classes = class_names(run, int(task["classes"])) if has_classes else ()
    labels = tuple(task.get("labels") or ())
    done = [plan_run for plan_run in run.done if "real" in plan_run.row]
    seeds = Counter(plan_run.label for plan_run in done)
    return [RealRun(of, of.label + f", seed {of.plan.seed}" * (seeds[of.label] > 1), classes, labels) for of in done]


def real_sentences(run: Run) -> list[str]:
    """A line for each run over real sites: of whom its figures are, and how exact."""
    lines = []
    for home in real_runs(run):
        whole, basis = home.together, "no hospital has told sums, so nothing is known of all patients together"
        if whole:
            basis = f"judged at home on {whole['count']} samples that {plural(whole['sites'], 'hospital')} held out"
            if whole["auc_error"] >= LEAST_TOLD:
                basis += f"; its AUC, of binned scores, is at most {whole['auc_error']:.3f} off"
        lines.append(f"{home.name}: {basis}.")
    return lines


def repeat(run: Run) -> str:
    """The command that runs the same again, or those of the runs that were put side by side."""
    word, how = ("start", "--name ANOTHER") if run.real else ("run", f"--engine {run.about.get('engine')}")
    files = [shlex.quote(f"{place}/scenario.toml") for place in run.about.get("places", [run.place])]
    return "\n".join(f"fedsmall {word} {file} {how}" for file in files)


def _home(site: str, counts: Mapping[str, Any], judged: Mapping[str, Any], reported: Mapping[str, float]) -> Home:
    matrix, metrics = np.array(judged.get("called", [[0]])), {**reported, **judged["metrics"]}
    area = Estimate(*judged["auc"]) if "auc" in judged else NONE._replace(value=metrics.get("auc", float("nan")))
    accuracy = wilson(int(np.trace(matrix)), int(matrix.sum()))
    return Home(site, counts.get("samples"), judged["count"], area, accuracy, _errors(judged), metrics)


def _errors(judged: Mapping[str, Any]) -> AtThreshold | None:
    matrix = judged.get("called", [])
    if len(matrix) != 2:
        return None
    (tn, fp), (fn, tp) = matrix
    return of_counts(HALF, tp, fp, fn, tn)


TOLD = Markup(
    "There is no central test set. Every hospital judged the global model of <b>{label}</b> on the patients that it "
    "holds out itself, and told sums: {count} samples of {hospitals}. All figures of this run are of those together"
    "{averaged}. {silent}{hidden}"
)
SILENT = (
    "Not among them: {}, who told no sums (away at the end, too few patients held out, or a policy that lets none be "
    "told)."
)
HIDDEN = Markup(
    "What each hospital told is hidden in these sums (<code>secure = true</code>): nobody outside it knows its share, "
    "or whether it has one."
)
UNTOLD = Markup(
    "There is no central test set, and no hospital has told sums: each holds too few patients out, was away at the "
    "end, or has a policy that lets none be told (or the run is of an earlier release). What the model is worth at a "
    "hospital, <code>fedsmall site report {}</code> says there."
)
SHARES = " Under each share its 95% interval (Wilson) and what was counted. "
UNSHOWN = Markup(
    "<b>What this cannot show.</b> No single prediction left a hospital, so there are no other thresholds here, no "
    "precision-recall curve, no patient who was wrongly called, and no group of patients but the hospital. The "
    "held-out patients are of hospitals that trained; what a hospital would see that took no part, "
    "<code>validate</code> tells. {}Before the run's last evaluation figures are means of the hospitals' own, by their "
    "patients. A hospital sees all of it for its own patients with <code>fedsmall site report {}</code>."
)
OVER_HOSPITALS = (
    "Intervals are over hospitals (each left out in turn, Student's t): for the average over hospitals such as these, "
    "and wide where they are few."
)
MESSAGES = (
    "Messages of all kinds. Bytes are those of models and sums, without what carries them; each hospital's own log has "
    "the same for what left it."
)


def real_sections(run: Run) -> list[Section]:
    """The parts of a page on runs over real sites."""
    homes = real_runs(run)
    sections: list[Section] = []
    for place, home in enumerate(homes):
        title = "Over real hospitals" + (f": {home.name}" if len(homes) > 1 or not run.real else "")
        names = home.classes[1:] if home.is_binary else home.classes or home.labels
        look, label = looks([home.plan_run.plan.method])[home.plan_run.label], home.name
        drawn = curves.of_sums(home.together, home.real["contacts"], names, look, label)
        sections.append(Section(title, "real" + (str(place + 1) if place else "")))
        sections += _judged_sections(home) if home.together else [Section(sentences=[UNTOLD.format(home.real["run"])])]
        sections += [Section(figures=drawn), Section(sentences=[_when(home)]), Section(table=_messages(home))]
    return sections


def _judged_sections(home: RealRun) -> list[Section]:
    whole, run, hidden = home.together, home.real["run"], home.judged.get("hidden")
    silent = SILENT.format(", ".join(home.silent)) if home.silent else ""
    words = {"count": whole["count"], "hospitals": plural(whole["sites"], "hospital")}
    averaged = list_words([*map(metric_name, home.averaged)]) if home.averaged else ""
    words["averaged"] = f", but for {averaged}: a mean of the hospitals' own, by their samples" if averaged else ""
    first = TOLD.format(label=home.name, **words, silent=silent, hidden=HIDDEN if hidden else "")
    over = "No interval over hospitals: it takes each one's own sums." if hidden else OVER_HOSPITALS
    caption = f"All {whole['count']} together. {over}"
    tables = [_hospitals(home)] if home.homes else []
    tables.append(Cells(["statistic", "value", "95% over hospitals"], _metrics(home), caption, (0,)))
    tables += [_labels(home)] if home.labels else []
    tables += [_matrix(home)] if whole.get("called") else []
    last = UNSHOWN.format("Nor is anything known of one hospital. " if hidden else "", run)
    return [Section(sentences=[first]), *(Section(table=cells) for cells in tables), Section(notes=[last])]


def _hospitals(home: RealRun) -> Cells:
    off = home.together["auc_error"]
    odds = f", from even odds on ({home.classes[1]} is the positive class)" if home.is_binary else ""
    binned = ""
    if home.classes:
        binned = SHARES + ("The AUC's is DeLong's; pairs" if home.is_binary else "Of the AUC, pairs")
        binned += " whose scores share a bin count half" + f" (off by {off:.3f} at most)" * (off >= LEAST_TOLD) + "."
    caption = f"Hospital by hospital{odds}.{binned}"
    columns = _columns(home)
    rows = [[at.site, at.trained or "", at.judged, *(cell(at) for cell in columns.values())] for at in home.homes]
    return Cells(["hospital", "trained on", "evaluated on", *columns], rows, caption)


def _columns(home: RealRun) -> dict[str, Callable[[Home], object]]:
    """What is known of hospitals beside counts, by the head of its column."""
    if not home.classes:
        names = ["auc", "brier"] if home.labels else dict.fromkeys(name for at in home.homes for name in at.metrics)
        return {_called(name) + ", mean over labels" * bool(home.labels): partial(_cell, metric=name) for name in names}
    columns: dict[str, Callable[[Home], object]] = {"accuracy": lambda at: share(at.accuracy)}
    if home.is_binary:
        columns["sensitivity"] = lambda at: share(at.errors.sensitivity) if at.errors else ""
        columns["specificity"] = lambda at: share(at.errors.specificity) if at.errors else ""
    area = (lambda at: number(at.area)) if home.is_binary else partial(_cell, metric="auc")
    return {"ROC-AUC": area, **columns, "Brier": partial(_cell, metric="brier")}


def _cell(at: Home, metric: str) -> str:
    return f"{at.metrics[metric]:.3f}" if metric in at.metrics else ""


def _called(metric: str) -> str:
    return WORDS.get(metric, metric_name(metric))


def _metrics(home: RealRun) -> list[list[object]]:
    over, values = home.together.get("over_sites", {}), home.together.get("metrics", {})
    rows: list[list[object]] = []
    for name in OF_LABELS if home.labels else SHOWN:
        if name in values:
            ends = over.get(name) or {}
            known = ends.get("low") is not None
            cell = f"{ends['low']:.3f} to {ends['high']:.3f}" if known else SMALL.format("none")
            rows.append([_called(name), f"{values[name]:.3f}", cell])
    return rows


def _labels(home: RealRun) -> Cells:
    rows = []
    for label, metrics in zip(home.labels, home.together["each"], strict=True):
        values = (metrics["auc"], metrics["f1"])
        cells = [SMALL.format("not defined here") if value is None else f"{value:.3f}" for value in values]
        rows.append([label, f"{metrics['there']:.0f}", *cells])
    caption = "Label by label, all hospitals together; called where its probability is above one half."
    return Cells(["label", "have it", "ROC-AUC", "F1"], rows, caption)


def _matrix(home: RealRun) -> Cells:
    errors, matrix, frequent = _errors(home.together), home.together["called"], ""
    if errors:
        ppv, npv = (f"{100 * at.value:.1f}" if at.of else "-" for at in (errors.ppv, errors.npv))
        frequent = f" PPV {ppv}%, NPV {npv}%, where {home.classes[1]} is as frequent as here."
    rows = [[name, *row, sum(row)] for name, row in zip(home.classes, matrix, strict=True)]
    caption = f"Confusion matrix, all hospitals together, at even odds.{frequent}"
    return Cells(["truth", *(f"called {name}" for name in home.classes), "all"], rows, caption)


def _when(home: RealRun) -> str:
    """When the communication rounds were, how long one took, and how often the run was begun."""
    seconds = [comm_round[1] for comm_round in home.real["contacts"]]
    if not seconds:
        return "No communication round is in the log."
    began, ended = (home.real[end][:16].replace("T", " ") for end in ("started", "ended"))
    times = f"median {np.median(seconds):.2g} s, longest {max(seconds):.2g} s"
    again = home.real["launches"] - 1
    resumed = f" It was resumed {'once' if again == 1 else f'{again} times'}." if again > 0 else ""
    rounds = f"{len(seconds)} communication rounds"
    return f"{rounds}, {began} to {ended} UTC; from first order to last answer {times}.{resumed}"


def _messages(home: RealRun) -> Cells:
    rows = []
    for site, site_counts in sorted(home.real["sites"].items()):
        *counts, sent, received = (int(site_counts.get(name, 0)) for name in COUNTED)
        spent = _spent_text(site_counts.get("charged", {}), home.plan_run)
        rows.append([site, *counts, amount(sent), amount(received), spent])
    heads = ["hospital", "answered", "refused", "silent", "bytes to it", "bytes from it"]
    return Cells([*heads, "charged to its privacy budget"], rows, MESSAGES, words=(6,))


def _spent_text(ledger: Mapping[str, float], plan_run: PlanRun) -> str:
    if not plan_run.plan.privacy.counted:
        return "no ledger"
    if not ledger:
        return "not told"
    if "steps" in ledger:
        words = f"{ledger['steps']:g} local steps"
    else:
        spent = f"epsilon {ledger['epsilon']:.3g} at delta {ledger['delta']:g}, " if "epsilon" in ledger else ""
        words = f"{spent}{ledger.get('releases', 0):g} releases"
    return words + (f"; its limit is {ledger['most']:g}" if "most" in ledger else "")
