"""What a run sent, and what of a site was in it, in plain words."""

from fedsmall.models.own_models import has_own_models
from sim.runs.folder import Run

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
    parts = [f"At each contact a site sends {trained}{_size(run)}, the number of its samples, and its training loss."]
    if own:
        parts.append("The other layers of its model never leave it.")
    if any(plan.recipe.has_state and plan.recipe.optimizer_state == "travel" for plan in federated):
        parts.append("The moments of its optimizer travel with the model.")
    if any(plan.method.rule == "scaffold" for plan in federated):
        parts.append("Under SCAFFOLD its control variate goes with it, which doubles what is sent.")
    if any(plan.method.tree and plan.method.tree.fold_at == "server" for plan in federated):
        parts.append("Every replica's model leaves the site, for they are folded at the server.")
    parts += [_privacy(run), *outside(run)]
    parts.append("No sample, file name, or identity of a patient is sent. The server hands models on and sees each.")
    return parts


def _size(run: Run) -> str:
    model = next((model for one in run.done if (model := run.model_of(one)) is not None), None)
    if model is None:
        return ""
    numbers = sum(array.size for array in model.values())
    return f" ({numbers:,} numbers, {amount(sum(array.nbytes for array in model.values()))})"


def outside(run: Run) -> list[str]:
    """What the epsilon of a run does not cover, in one line, where there is an epsilon."""
    if not _under(run, counted=True):
        return []
    task = run.plans[0].task
    stated = isinstance(task, dict) and "ranges" in task
    sums = "" if stated else "the sums by which features are scaled (real sites want ranges in the task instead), and "
    return [f"Outside the epsilon: {sums}what models are worth on held-out samples, which is told exactly."]


def _privacy(run: Run) -> str:
    of = {"clipped and noised": _under(run, counted=True), "blurred": _under(run, counted=False)}
    if not any(of.values()):
        return "Nothing is added to hide the model: it is sent as it was trained."
    done = "; ".join(f"{what} under {', '.join(labels)}" for what, labels in of.items() if labels)
    return f"What leaves is {done}; other methods send the model as it was trained."


def _under(run: Run, counted: bool) -> list[str]:
    """The methods under clip and noise, which a ledger counts, or those under blur."""
    plans = [(plan.method.label, plan.method.privacy) for plan in run.plans]
    kept = [label for label, privacy in plans if privacy and not privacy.open and privacy.counted == counted]
    return list(dict.fromkeys(kept))
