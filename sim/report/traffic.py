"""What a run sent, and what of a site was in it, in plain words."""

from collections.abc import Sequence

from fedsmall.codec.forms import share_of
from fedsmall.models.own_models import has_own_models
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import is_patient_level
from fedsmall.privacy.site_level import tells_loss
from fedsmall.sim.report.promises import promises
from fedsmall.sim.report.readers import blind, readers
from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.folder import PlanRun, Run

HIDDEN = {
    "patient": "noise is in every local step under {}",
    "site": "what leaves is clipped and noised under {}",
    "blur": "what leaves is blurred under {}",
}
UNITS = ("B", "kB", "MB", "GB", "TB")


def amount(size: float) -> str:
    """A number of bytes as a reader wants it: 1.2 MB."""
    step = 0
    while size >= 1000 and step < len(UNITS) - 1:
        size, step = size / 1000, step + 1
    return f"{size:.3g} {UNITS[step]}"


def leaves_a_site(run: Run) -> list[str]:
    """What a site sends at a contact, one sentence each; it follows from the plans and the size of the model."""
    federated = [plan for plan in run.plans if plan.method.family == "federated"]
    if not federated:
        return ["Nothing: no method of this run is federated."]
    own = any(map(has_own_models, federated))
    trained = "the trained layers that all sites share" if own else "its trained model"
    beside = ["the number of its samples"] * (not all(map(is_patient_level, federated)))
    beside += ["its training loss"] * any(map(tells_loss, federated))
    parts = [f"At each contact a site sends {' and '.join([trained + _size(run), *beside])}."]
    if own:
        parts.append("The other layers of its model never leave it.")
    if any(plan.recipe.has_state and plan.recipe.optimizer_state == "travel" for plan in federated):
        parts.append("The moments of its optimizer travel with the model.")
    parts += [*left_out(run), *_rounded(federated)]
    if any(plan.method.rule == "scaffold" for plan in federated):
        parts.append("Under SCAFFOLD its control variate goes with it, which doubles what is sent.")
    if any(plan.method.rule == "fedfa" for plan in federated):
        parts.append("Under FedFa the accuracy of the common model on its training samples goes with it.")
    if any(plan.method.rule == "page" for plan in federated):
        parts.append("Under FedPAGE every other contact tells a gradient, as a step down it, not a trained model.")
    if any(plan.method.validation for plan in federated):
        parts.append("Where models travel by routes it tells sums and binned counts over its samples at evaluations.")
    if run.real:
        parts.append(
            "At evaluations it tells what the model is worth on its held-out patients, at the end as sums too."
        )
    if any(plan.kept_back for plan in federated):
        parts.append("At evaluations it tells how many samples it keeps back to say when to stop, and their loss.")
    if any(plan.method.tree and plan.method.tree.fold_at == "server" for plan in federated):
        parts.append("Every replica's model leaves the site, for they are folded at the server.")
    parts += [_privacy(run), *promises(run), *outside(run)]
    parts.append(f"{_unsent(run)} {_seen_by_the_server(run)}")
    return parts


def _unsent(run: Run) -> str:
    """What is not sent, and that models can show it all the same."""
    counted = "what can be reconstructed from models stands below"
    if not readers(run) and not blind(run):
        counted = "what could be reconstructed from models was not counted (docs/security.md)"
    return f"No record is sent as such, and no file name or identity of a patient; {counted}."


def _seen_by_the_server(run: Run) -> str:
    """Which single models a server sees, by method, and who sees them where there is none, or several."""
    federated = [plan for plan in run.plans if plan.method.family == "federated"]
    alone = [plan for plan in federated if plan.method.topology is not None]
    several = [plan for plan in federated if plan.method.region_count > 1]
    one = [plan for plan in federated if plan not in alone and plan not in several]
    parts = [_seen_by_one(run, one, "the other methods' " if alone or several else "")] * bool(one)
    parts += [f"Under {_labels(alone)} there is no server: the site that a model is sent to sees it."] * bool(alone)
    if several:
        parts.append(
            f"Under {_labels(several)} a region's server sees the models of its sites; one above them is told the "
            f"regions' common models. Between servers went {_between(run)} a run."
        )
    return " ".join(parts)


def _between(run: Run) -> str:
    """What the servers of regions sent each other, by method."""
    sent: dict[str, list[float]] = {}
    for one in run.done:
        if one.plan.method.region_count > 1:
            sent.setdefault(one.plan.method.label, []).append(one.row.get("bytes_between", 0))
    told = {label: amount(sum(each) / len(each)) for label, each in sent.items()}
    return ", ".join(f"{size} ({label})" if len(told) > 1 else size for label, size in told.items()) or "nothing"


def _seen_by_one(run: Run, plans: list[Plan], whose: str) -> str:
    sealed = _labels([plan for plan in plans if plan.method.privacy and plan.method.privacy.sealed])
    secure = _labels([plan for plan in plans if plan.method.privacy and plan.method.privacy.secure])
    if not (sealed or secure):
        return f"The server hands {whose}models on and sees each."
    parts = [f"those handed on under {sealed}, which are sealed"] * bool(sealed)
    parts += [f"those averaged under {secure}, of which it is told the sum alone (experimental)"] * bool(secure)
    simulated = "" if run.real else " In a simulation seals and masks are left out: the models are the same."
    return f"The server hands {whose}models on and sees each, but for {', and '.join(parts)}.{simulated}"


def left_out(run: Run) -> list[str]:
    """Where averages may be left out, what a site sends instead, and how many were: a sentence for each method."""
    told = {label: done for label, done in by_label(run.done).items() if "averages" in done[0].row}
    return [_averages(label, done) for label, done in told.items()]


def _averages(label: str, done: Sequence[PlanRun]) -> str:
    rows = [one.row["averages"] for one in done]
    due = sum(len(row["models"]) for row in rows)
    out, some, of_all = (sum(row[kind] for row in rows) for kind in ("left_out", "partial", "whole"))
    runs = "" if len(done) == 1 else f" in {len(done)} runs"
    return (
        f"Under {label} a site sends its model only where that is further than {done[0].plan.method.divergence:g} "
        "(squared) from the last model that all had, where an average asks for it, and at the end; else a word. Of "
        f"{due} averages{runs} {out} were left out, {some} took some models and {of_all} all."
    )


def _rounded(plans: list[Plan]) -> list[str]:
    """In what form models travel, where it is not that in which they train."""
    changes = [plan for plan in plans if share_of(plan.method.wire) is not None]
    told = [
        f"Under {_labels([plan for plan in changes if plan.method.wire == wire])} the {wire.removeprefix('top')} of a "
        "model that have changed most leave a site, with what was left over before, which hides nobody."
        for wire in dict.fromkeys(plan.method.wire for plan in changes)
    ]
    return told + [
        f"Under {_labels(mine)} what travels is rounded to {bits} bits a number ({wire}), which hides nobody."
        for wire, bits in (("half", 16), ("int8", 8), ("int4", 4))
        if (mine := [plan for plan in plans if plan.method.wire == wire])
    ]


def _size(run: Run) -> str:
    model = next((model for one in run.done if (model := run.model_of(one)) is not None), None)
    if model is None:
        return ""
    numbers = sum(array.size for array in model.values())
    return f" ({numbers:,} numbers, {amount(sum(array.nbytes for array in model.values()))})"


def outside(run: Run) -> list[str]:
    """What the epsilon of a run does not cover, in one line, where there is an epsilon."""
    if not (_under(run, "patient") or _under(run, "site")):
        return []
    task = run.plans[0].task
    stated = isinstance(task, dict) and "ranges" in task
    sums = "" if stated else "the sums by which features are scaled (real sites want ranges in the task instead), and "
    return [f"Outside the epsilon: {sums}what models are worth on held-out samples, which is told exactly."]


def _privacy(run: Run) -> str:
    """What is done to hide the model, by kind, and what is sent as it was trained."""
    said = [text.format(", ".join(labels)) for kind, text in HIDDEN.items() if (labels := _under(run, kind))]
    if not said:
        return "Nothing is added to hide the model: it is sent as it was trained."
    text, open_too = "; ".join(said), bool(_under(run, ""))
    return text[0].upper() + text[1:] + ("; other methods send the model as it was trained." if open_too else ".")


def _under(run: Run, kind: str) -> list[str]:
    """The federated methods whose privacy is for the "patient", for the "site", or "blur"; "" for none."""
    plans = [plan for plan in run.plans if plan.method.family == "federated"]
    return list(dict.fromkeys(plan.method.label for plan in plans if _kind(plan.method.privacy) == kind))


def _labels(plans: list[Plan]) -> str:
    return ", ".join(dict.fromkeys(plan.method.label for plan in plans))


def _kind(privacy: Privacy | None) -> str:
    if privacy is None or privacy.open:
        return ""
    return privacy.level if privacy.counted else "blur"
