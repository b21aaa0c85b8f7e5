"""Times until an event that come with a library: breast cancer, until it came back or the patient died."""

from pathlib import Path

import numpy as np

from fedsmall.data.forms import Columns
from fedsmall.data.outcomes import Survival
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import PlanError

GRADES = {"I": 1.0, "II": 2.0, "III": 3.0}


def gbsg2(root: Path | None, seed: int) -> Pool:
    """686 women with node-positive breast cancer, days until recurrence or death (Schumacher et al. 1994, GBSG-2).

    The copy is scikit-survival's, in the extra "survival". Hormone therapy and menopause are 0 or 1, grades 1 to 3.
    """
    try:
        from sksurv.datasets import load_gbsg2
    except ImportError:
        raise PlanError("task 'gbsg2' comes with scikit-survival: pip install 'fedsmall[survival]'") from None
    frame, seen = load_gbsg2()
    columns = {
        "age": frame["age"],
        "hormone_therapy": frame["horTh"] == "yes",
        "after_menopause": frame["menostat"] == "Post",
        "tumour_size": frame["tsize"],
        "tumour_grade": frame["tgrade"].astype(str).map(GRADES),
        "positive_nodes": frame["pnodes"],
        "progesterone_receptor": frame["progrec"],
        "estrogen_receptor": frame["estrec"],
    }
    x = np.stack([np.asarray(values, dtype=np.float64) for values in columns.values()], axis=1)
    y = np.stack([seen["time"].astype(np.float64), seen["cens"].astype(np.float64)], axis=1)
    return Pool(
        {NOWHERE: Part(x, y)},
        feature_names=tuple(columns),
        standardise=True,
        loss="hazard",
        form=Columns(columns=tuple(columns)),
        outcome=Survival(name="days", event="recurrence"),
    )
