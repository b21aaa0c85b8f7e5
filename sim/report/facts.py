"""What a report says of a run beside its table: when it ended, what it promises, what leaves a site, who reads it."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median_low
from typing import Any, NamedTuple

from fedsmall.evaluation.site_sums import OF_PATIENTS
from fedsmall.package.record import GLOBAL, members_in
from fedsmall.parts import Privacy, share_of
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import tells_loss
from fedsmall.sim.report.sentences import amount, metric_name, plural
from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run

Row = Mapping[str, Any]


def say(facts: Mapping[str, Callable[[Plan], Any]], plans: Sequence[Plan]) -> list[str]:
    """The sentences that hold of one of the plans at least."""
    return [text for text, holds in facts.items() if any(map(holds, plans))]


def _runs_with(run: Run, key: str) -> dict[str, list[PlanRun]]:
    groups = by_label(run.done).items()
    having = {label: [plan_run for plan_run in done if plan_run.row.get(key)] for label, done in groups}
    return {label: done for label, done in having.items() if done}


def _rows(run: Run, key: str) -> dict[str, list[dict[str, Any]]]:
    return {label: [plan_run.row[key] for plan_run in done] for label, done in _runs_with(run, key).items()}


def federated_plans(run: Run) -> list[Plan]:
    """The plans whose sites send something."""
    return [plan for plan in run.plans if plan.method.is_federated]


def _labels(plans: Sequence[Plan]) -> str:
    return ", ".join(dict.fromkeys(plan.method.label for plan in plans))


def _mean(rows: Sequence[Row], name: str) -> float:
    return mean(float(row[name]) for row in rows)


# When runs ended early, and which model they keep

STOPPED = (
    "{label} {how} (round {ends} of {rounds}{median}) and keeps its {models} of round {kept}: there the loss on {whom} "
    "was lowest, {loss}; its patience is {patience}. Test samples had no say."
)


def stop_sentences(run: Run) -> list[str]:
    """A sentence for each method whose plans could end early and have found a best round."""
    return [_stop_sentence(label, done) for label, done in _runs_with(run, "chosen").items()]


def _stop_sentence(label: str, done: Sequence[PlanRun]) -> str:
    plan, rows = done[0].plan, [plan_run.row["stop"] for plan_run in done]
    assert plan.stop is not None
    ends, several = [plan_run.row["rounds"] for plan_run in done], len(done) > 1
    early = sum(end < plan.rounds for end in ends)
    some = f"ended early in {early} of {len(ends)} runs" if early else "went to its end"
    return STOPPED.format(
        label=label,
        how="ended early" if early == len(ends) else some,
        ends=_median(ends),
        rounds=plan.rounds,
        median=f", median of {len(done)} runs" if several else "",
        models="models" if plan.method.family == "standalone" else "model",
        kept=_median([plan_run.row["chosen"] for plan_run in done]),
        whom=_judges(plan, *(round(_mean(rows, name)) for name in ("samples", "sites"))),
        loss=f"{_mean(rows, 'loss'):.3g}" + " on average" * several,
        patience=plural(plan.stop.patience, "evaluation"),
    )


def _judges(plan: Plan, samples: int, sites: int) -> str:
    if plan.method.validation is not None:
        return f"{samples} training samples of {sites} hospitals, none of which the judged model had seen,"
    where = "" if plan.method.is_central else f" at {plural(sites, 'site')}"
    return f"the {samples} samples{where} that were held out from training"


def _median(rounds: Sequence[int]) -> str:
    ends = f" ({min(rounds)} to {max(rounds)})" if min(rounds) < max(rounds) else ""
    return f"{median_low(rounds)}{ends}"


# What methods promise the people in the data: epsilon, from the run's own ledgers

PROMISED = "{label} promises epsilon = {epsilon} at delta = {delta:g} to each {whom}."
UNCOVERED = "Outside the {limit}: {sums}what models are worth on held-out samples, which is sent exactly."
LIMITS = {"epsilon": ("patient", "site"), "exposure": ("exposure",)}

BOUNDED = (
    "{label} tells of a record no more than exposure = {exposure:g}: who sees all models that a site sends, and knows "
    "all its other patients, errs by {error:.2g} standard deviations or more on average. It claims no epsilon, and "
    "hides nobody's presence."
)


def promises(run: Run) -> list[str]:
    """A sentence for each method with an epsilon or an exposure that was run to its end."""
    bounded = {
        plan_run.label: BOUNDED.format(label=plan_run.label, exposure=exposure, error=exposure**-0.5)
        for plan_run in run.done
        if (exposure := plan_run.plan.privacy.exposure) is not None
    }
    return [_promise(label, done) for label, done in _runs_with(run, "privacy").items()] + [*bounded.values()]


def _promise(label: str, done: Sequence[PlanRun]) -> str:
    privacy, spent = done[0].plan.privacy, [plan_run.row["privacy"] for plan_run in done]
    epsilon, whom = f"{max(row['epsilon'] for row in spent):.3g}", "site, against readers of the final model"
    if privacy.level != "site":
        least = f"{min(row['epsilon_least'] for row in spent):.3g}"
        epsilon = epsilon if least == epsilon else f"{least} to {epsilon}, by the site,"
        whom = "patient, whoever sees whatever the site sends"
    return PROMISED.format(label=label, epsilon=epsilon, delta=privacy.delta, whom=whom)


def uncovered(run: Run) -> list[str]:
    """What the epsilon or exposure of a run does not cover, in one line, where there is one."""
    limits = [word for word, kinds in LIMITS.items() if _under(federated_plans(run), *kinds)]
    if not limits:
        return []
    task = run.plans[0].task
    stated = isinstance(task, dict) and "ranges" in task
    sums = "" if stated else "the sums by which features are scaled (real sites want ranges in the task instead), and "
    return [UNCOVERED.format(limit=" and the ".join(limits), sums=sums)]


# Models that answer together: how far they differ


def ensemble_sentences(run: Run) -> list[str]:
    """A line for each method whose models answer together."""
    return [f"{label}: {_differ(spreads)}." for label, spreads in _rows(run, "spread").items()]


def _differ(spreads: Sequence[Row]) -> str:
    """How far members differ, in words; outputs that are no probabilities have units of their own."""
    deviation = _mean(spreads, "deviation")
    if "information" not in spreads[0]:
        return f"their outputs differ by {deviation:.3g} (sd, mean of the test samples)"
    return (
        f"the members differ by {100 * deviation:.1f} points of probability (sd, mean of the test samples; "
        f"mutual information {_mean(spreads, 'information'):.3f} nats)"
    )


# What to expect where models travel by routes; where folds were of samples it is of these hospitals

EXPECTED = "{where}, expect {metrics}; {rests_on}."
RESTS_ON = "{samples} samples of {sites}, each judged by models that never saw {whom}{seeds}"
SHARES = ("auc", "accuracy", "mae")  # the metrics of the sentence: the first two of these that there are
METRICS = ("auc", "accuracy", "loss", "brier", "ece")
WHERE = {False: "at a hospital that took no part", True: "at these hospitals, for patients who took no part"}
WORDS = {"loss": "negative log-likelihood", "brier": "Brier score", "ece": "calibration error"}


def unseen_rows(run: Run) -> dict[str, list[tuple[str, ...]]]:
    """By where it is expected, a row of each validated method: metrics over the seeds, worst and best hospital."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for label, validations in _rows(run, "validation").items():
        cells = [_over_seeds(name, [fold["metrics"].get(name) for fold in validations]) for name in METRICS]
        rows.setdefault(WHERE[_of_patients(validations)], []).append((label, *cells, _worst_and_best(validations)))
    return rows


def unseen_sentences(run: Run) -> list[str]:
    """A sentence for each method of a run that was validated by routes."""
    return [f"{label}: {expectation(validations)}" for label, validations in _rows(run, "validation").items()]


def expectation(validations: Sequence[Row]) -> str:
    """What to expect where, by the ``validations`` of all seeds."""
    known = [name for name in SHARES if all(name in fold["metrics"] for fold in validations)][:2] or ["loss"]
    values = {name: _over_seeds(name, [fold["metrics"][name] for fold in validations]) for name in known}
    samples, sites = (round(_mean(validations, name)) for name in ("samples", "sites"))
    rests_on = RESTS_ON.format(
        samples=samples,
        sites=plural(sites, "hospital"),
        whom="the patient" if _of_patients(validations) else "its hospital",
        seeds=f", mean over {len(validations)} seeds" if len(validations) > 1 else "",
    )
    metrics = ", ".join(f"{WORDS.get(name, metric_name(name))} {value}" for name, value in values.items())
    return EXPECTED.format(where=WHERE[_of_patients(validations)], metrics=metrics, rests_on=rests_on)


def _of_patients(validations: Sequence[Row]) -> bool:
    return any(fold.get("folds") == OF_PATIENTS for fold in validations)


def _over_seeds(name: str, metrics: Sequence[Row | None]) -> str:
    """Value and interval, each the mean over the seeds: the interval is over hospitals."""
    known = [metric for metric in metrics if metric is not None]
    if not known:
        return "-"
    value = _share(name, _mean(known, "value"))
    if any(metric["low"] is None for metric in known):
        return value
    low, high = (_share(name, _mean(known, end)).rstrip("%") for end in ("low", "high"))
    return f"{value} ({low} to {high})"


def _share(name: str, value: float) -> str:
    return f"{100 * value:.1f}%" if name in ("auc", "accuracy") else f"{value:.3f}"


def _worst_and_best(validations: Sequence[Row]) -> str:
    """The accuracy of the worst and of the best hospital shown, each a mean over the seeds."""
    shown = [[at["accuracy"] for at in fold["hospitals"].values() if "accuracy" in at] for fold in validations]
    if not all(shown):
        return "-"
    return " to ".join(_share("accuracy", mean(map(end, shown))) for end in (min, max))


# Whose records could be read by whom in a simulation

READER_HEADS = ("the server", "any next site", "one site (median, most)", "any site, from averages")
BLIND = (
    "its model has no layer that shows whole records to this attack, or trains on changed images, which says "
    "nothing of others"
)
CURE = "privacy = {exposure = 1.0} under a method limits what is disclosed of a record: docs/security.md says how far."
LOOKS = (
    "{label}: by an estimate, who weighs all blurred models and knows a site's other patients can tell a record to "
    "within {error:.1g} standard deviations; privacy = {{exposure = 1.0}} sets a limit."
)


class Readable(NamedTuple):
    """One method: how many ``patients`` there were, and what each of :data:`READER_HEADS` could read of them."""

    label: str
    patients: int
    read: dict[str, Any]

    @property
    def anybody(self) -> bool:
        """Whether some party could read somebody."""
        return any(self.read.get(party, 0) > 0 for party in ("server", "neighbours", "averages"))

    @property
    def cells(self) -> tuple[str, ...]:
        """A cell for each of :data:`READER_HEADS`."""
        median, most = self.read.get("curious", (None, None))
        one_site = "-" if median is None else f"{median:g}, {most}"
        return str(self.read["server"]), str(self.read.get("neighbours", "-")), one_site, str(self.read["averages"])

    @property
    def looked(self) -> str:
        """At how many communication rounds the counts were taken; empty where that was at all."""
        counts = self.read
        return f"{counts['looked']} of {counts['contacts']}" if counts["looked"] < counts["contacts"] else ""


def readers(run: Run) -> list[Readable]:
    """The methods of a run on whose first seed it was counted who could be read; not where no model leaves a site."""
    first = {label: rows[0] for label, rows in _rows(run, "read").items()}
    return [Readable(label, row["patients"], row) for label, row in first.items() if not row.get("blind")]


def blind(run: Run) -> list[str]:
    """The methods at whose models this attack has nothing to look."""
    return [label for label, rows in _rows(run, "read").items() if any(row.get("blind") for row in rows)]


def reader_sentences(run: Run) -> list[str]:
    """What a terminal says of all this: a line for each method, and what to write where somebody could be read."""
    rows = readers(run)
    lines = [f"{row.label}: {_read(row)}" for row in rows]
    if lines:
        seed = run.plans[0].seed
        lines.insert(0, f"Complete records that could be reconstructed from what was sent (within 1%, seed {seed}):")
    if any(row.anybody for row in rows):
        lines.append(CURE)
    lines += [LOOKS.format(label=row.label, error=row.read["looks"] ** -0.5) for row in rows if row.read.get("looks")]
    if names := blind(run):
        lines.append(f"{', '.join(names)}: {BLIND}.")
    return lines


def looked_at(rows: Sequence[Readable]) -> str:
    """At how many communication rounds the counts were taken, where those are not all."""
    few = [f"{row.looked} ({row.label})" for row in rows if row.looked]
    return f"Communication rounds looked at: {', '.join(few)}; the rest was not, so more may be read." if few else ""


def _read(row: Readable) -> str:
    """As "the server 151 of 160; any next site 140; one site 23 (median), 34 (most); any site, from averages 0"."""
    counts = row.read
    parts = [f"the server {counts['server']} of {row.patients}"]
    if "neighbours" in counts:
        median, most = counts["curious"]
        parts += [f"any next site {counts['neighbours']}", f"one site {median:g} (median), {most} (most)"]
    part = f"; {row.looked} communication rounds looked at" if row.looked else ""
    return "; ".join([*parts, f"any site, from averages {counts['averages']}{part}."])


# What leaves a site, and who sees it

DYNAMIC = (
    "Under {label} a site sends its model only where that is further than {bound:g} (squared) from the last model that "
    "all had, where an average asks for it, and at the end; else a word. Of {due} averages{runs} {left_out} were left "
    "out, {partial} took some models and {whole} all."
)
LARGEST = (
    "Under {} the {} of a model that have changed most leave a site, with what was left over before, which hides "
    "nobody."
)
ROUNDED = "Under {} what travels is rounded to {} bits a number ({}), which hides nobody."
BITS = {"half": 16, "int8": 8, "int4": 4}
HIDDEN = {
    "patient": "noise is in every local step under {}",
    "site": "what leaves is clipped and noised under {}",
    "exposure": "what leaves is noised, by how much of a record may be told, under {}",
    "blur": "noise without a guarantee is on what leaves under {} (blur)",
}
OPEN = "No noise is added to what is sent."
SENT: dict[str, Callable[[Plan], Any]] = {
    "The other layers of its model never leave it.": lambda plan: plan.has_own_models,
    "The moments of its optimizer travel with the model.": lambda plan: (
        plan.recipe.has_state and plan.recipe.optimizer_state == "travel"
    ),
}
SENT_BESIDE: dict[str, Callable[[Plan], Any]] = {
    "Under SCAFFOLD its control variate goes with it, which doubles what is sent.": lambda plan: (
        plan.method.rule == "scaffold"
    ),
    "Where models travel by routes it tells sums and binned counts over its samples at evaluations.": lambda plan: (
        plan.method.validation
    ),
}
SENT_AT_EVALUATIONS: dict[str, Callable[[Plan], Any]] = {
    "At evaluations it tells how many samples it holds out to say when to stop, and their loss.": lambda plan: (
        plan.kept_back
    ),
    "Every replica's model leaves the site, for they are folded at the server.": lambda plan: plan.method.server_tree,
}
HELD_OUT = "At evaluations it tells what the model is worth on its held-out patients, at the end as sums too."


def leaves_a_site(run: Run) -> list[str]:
    """What a site sends at a communication round, in sentences, by the plans and the size of the model."""
    plans = federated_plans(run)
    if not plans:
        return ["Nothing: no method of this run is federated."]
    first = [f"In each communication round a site sends {_sent(run, plans)}.", *say(SENT, plans)]
    first += [*dynamic_sentences(run), *_rounding_lines(plans), *say(SENT_BESIDE, plans), *[HELD_OUT] * run.real]
    first += [*say(SENT_AT_EVALUATIONS, plans), *(noise_sentences(plans) or [OPEN]), *promises(run), *uncovered(run)]
    counted = "what can be reconstructed from models stands below"
    if not readers(run) and not blind(run):
        counted = "what could be reconstructed from models was not counted (docs/security.md)"
    unsent = f"No record is sent as such, and no file name or identity of a patient; {counted}."
    return [*first, f"{unsent} {_seen_by_servers(run, plans)}"]


def _sent(run: Run, plans: Sequence[Plan]) -> str:
    trained = [plan for plan in plans if plan.method.extension is None]
    is_partial = any(plan.has_own_models for plan in trained)
    sent = ["the trained layers that all sites share" if is_partial else "its trained model"] * bool(trained)
    kept = ((one.plan, model) for one in run.done if one.plan in trained and (model := run.model_of(one)))
    if (found := next(kept, None)) is not None:
        plan, model = found
        members = members_in(plan, GLOBAL, model) or 1  # of an ensemble one is sent
        numbers, size = (sum(getattr(a, name) for a in model.values()) // members for name in ("size", "nbytes"))
        sent[0] += f" ({numbers:,} numbers, {amount(size)})"
    if summed := _labels([plan for plan in plans if plan.method.extension is not None]):
        sent.append(f"under {summed} sums over its rows")
    sent += ["the number of its samples"] * (not all(plan.privacy.is_patient_level for plan in plans))
    sent += ["its training loss"] * any(map(tells_loss, plans))
    return " and ".join([*filter(None, [", ".join(sent[:-1])]), *sent[-1:]])


def dynamic_sentences(run: Run) -> list[str]:
    """Where averages may be left out, what a site sends instead, and how many were: a sentence for each method."""
    lines = []
    for label, done in _runs_with(run, "averages").items():
        rows = [plan_run.row["averages"] for plan_run in done]
        counts = {name: sum(row[name] for row in rows) for name in ("left_out", "partial", "whole")}
        due, runs = sum(len(row["models"]) for row in rows), "" if len(done) == 1 else f" in {len(done)} runs"
        lines.append(DYNAMIC.format(label=label, bound=done[0].plan.method.divergence, due=due, runs=runs, **counts))
    return lines


def _rounding_lines(plans: Sequence[Plan]) -> list[str]:
    wires = dict.fromkeys(plan.method.wire for plan in plans)
    of = {wire: _labels([plan for plan in plans if plan.method.wire == wire]) for wire in wires}
    largest = [LARGEST.format(of[wire], wire.removeprefix("top")) for wire in wires if share_of(wire) is not None]
    return largest + [ROUNDED.format(of[wire], bits, wire) for wire, bits in BITS.items() if wire in wires]


def noise_sentences(plans: Sequence[Plan]) -> list[str]:
    """What is added to what sites send, in one sentence; none where nothing is."""
    parts = [text.format(labels) for kind, text in HIDDEN.items() if (labels := _under(plans, kind))]
    if not parts:
        return []
    text, is_open = "; ".join(parts), bool(_under(plans, ""))
    return [text[0].upper() + text[1:] + ("; other methods add no noise." if is_open else ".")]


def measures(run: Run) -> str:
    """Which measures are on, in one line: noise, what it promises and does not cover, or what hides single models."""
    plans = federated_plans(run)
    bare = "none: no privacy is set in the scenario."
    if all(plan.privacy.sealed or plan.privacy.secure for plan in plans):
        bare = "no noise; the server is kept from what single sites send."
    return " ".join([*noise_sentences(plans), *promises(run), *uncovered(run)]) or bare


def _under(plans: Sequence[Plan], *kinds: str) -> str:
    """The methods whose privacy is for the "patient", for the "site", "exposure" or "blur"; "" for none."""
    return _labels([plan for plan in plans if _kind(plan.privacy) in kinds])


def _kind(privacy: Privacy) -> str:
    if privacy.open:
        return ""
    return privacy.level if privacy.counted else "blur" if privacy.exposure is None else "exposure"


def _seen_by_servers(run: Run, plans: Sequence[Plan]) -> str:
    """Which single models a server sees, by method, and who sees them where there is none, or several."""
    peers = [plan for plan in plans if plan.method.topology is not None]
    served = [plan for plan in plans if plan.method.has_one_server]
    regions = [plan for plan in plans if plan not in peers and plan not in served]
    parts = [_seen_by_server(run, served, " under the other methods" if peers or regions else "")] * bool(served)
    parts += [f"Under {_labels(peers)} there is no server: the site that a model is sent to sees it."] * bool(peers)
    if regions:
        done = by_label([plan_run for plan_run in run.done if plan_run.plan in regions]).items()
        sizes = {label: amount(mean(one.row.get("bytes_between", 0) for one in those)) for label, those in done}
        went = ", ".join(f"{size} ({label})" if len(sizes) > 1 else size for label, size in sizes.items()) or "nothing"
        parts.append(
            f"Under {_labels(regions)} a region's server sees the models of its sites; one above them receives the "
            f"regions' global models. Between servers went {went} a run."
        )
    return " ".join(parts)


def _seen_by_server(run: Run, plans: Sequence[Plan], under: str) -> str:
    sealed = _labels([plan for plan in plans if plan.privacy.sealed])
    secure = _labels([plan for plan in plans if plan.privacy.secure])
    if not (sealed or secure):
        return f"The server sees what each site sends{under}."
    parts = [f"models handed over under {sealed}, which are sealed"] * bool(sealed)
    parts += [f"what is added up under {secure}, of which it receives the sum alone (experimental)"] * bool(secure)
    simulated = "" if run.real else " In a simulation seals and masks are left out: the models are the same."
    return f"The server sees what each site sends{under}, but for {', and '.join(parts)}.{simulated}"
