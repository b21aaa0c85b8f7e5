"""The card of a run's main model as a part of its page, and how the model is used."""

import shlex

from markupsafe import Markup, escape

from fedsmall.errors import PlanError
from fedsmall.package.card import words
from fedsmall.sim.runs.chosen import chosen, main_method
from fedsmall.sim.runs.folder import PACKAGES, Run, stem

SECTION = Markup("""<h3>Use the model</h3>
<p><code>fedsmall predict {} NEW.csv</code> says what the models of {} make of new rows. It is no medical device.</p>
<details><summary>The model card ({}, seed {})</summary>
<pre>{}</pre></details>""")


def model_card(run: Run) -> Markup:
    """A section with the command that uses the model, and its card; nothing where no model was kept."""
    try:
        label = main_method(run)
        one = next(one for one in run.done if one.label == label and run.has_packages(one))
        stored = chosen(run, label, one.plan.seed)[0]
    except PlanError:  # an older run, one of several runs, or sites with models of their own
        return Markup()
    package = f"{run.place}/{PACKAGES}/{stem(one, stored.package.whose)}"
    return SECTION.format(shlex.quote(run.place), label, label, one.plan.seed, escape(words(*stored, package)))
