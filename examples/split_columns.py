"""What SecureBoost over split columns costs, and what each part of SecureBoost+ saves: one run, one key length.

Run it with ``python -m examples.split_columns``; two minutes or three on one core. Breast cancer (569 patients, 30
columns) lies with two parties, 15 columns each, in one process; processor seconds are those of both. ``--rounds``
makes more trees, ``--key-bits`` takes another key. Trees are checked to be those of joined columns in every row.
"""

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine

from fedsmall.extensions.columns.active import ActiveParty
from fedsmall.extensions.columns.boosting import fit_joined, with_splits
from fedsmall.extensions.columns.conducting import match_parties
from fedsmall.extensions.columns.messages import Post, hold_talk
from fedsmall.extensions.columns.party import PassiveParty, Table
from fedsmall.extensions.columns.plan import Boosting, Goss

LOSSLESS = {"packing": True}
ROWS: dict[str, dict[str, Any]] = {
    "SecureBoost": {},
    "+ packing (SecureBoostPlus)": LOSSLESS,
    "  with goss": {**LOSSLESS, "goss": Goss()},
    "  with mixed trees": {**LOSSLESS, "trees": "mixed"},
    "  with layered trees": {**LOSSLESS, "trees": "layered", "passive_levels": 2},
    "  with goss and mixed trees": {**LOSSLESS, "goss": Goss(), "trees": "mixed"},
}
CLASSES: dict[str, dict[str, Any]] = {
    "three classes, a tree for each": {**LOSSLESS},
    "three classes, one tree of many outputs": {**LOSSLESS, "outputs": "many"},
}
WORK = ("encrypting", "adding", "packing", "hiding", "decrypting")


def parties(x: np.ndarray, y: np.ndarray, key_bits: int) -> tuple[ActiveParty, PassiveParty, Post]:
    ids, half = tuple(f"patient {row}" for row in range(len(y))), x.shape[1] // 2
    active = ActiveParty("hospital", Table(ids, (), x[:, :half]), target=y, classes=len(set(y)), key_bits=key_bits)
    passive = PassiveParty("laboratory", Table(ids, (), x[:, half:]), secret=1, least_bits=key_bits)
    return active, passive, Post({"hospital": active, "laboratory": passive})


def measured(x: np.ndarray, y: np.ndarray, settings: Boosting, key_bits: int) -> dict[str, float]:
    """Seconds a round by what they were spent on, and MB; the trees are checked."""
    active, passive, post = parties(x, y, key_bits)
    rows = np.arange(hold_talk(match_parties(list(post.parties)), post))
    post.bytes.clear()
    start = time.process_time()
    hold_talk(active.fit(["laboratory"], settings, rows), post)
    seconds = time.process_time() - start

    def order(party: str, tree: int, node: int, count: int) -> np.ndarray:
        return passive.order(tree, node, count) if party == passive.name else np.arange(count)

    joined = fit_joined(
        {one.name: one.values for one in (active, passive)}, y[active.matched], active.classes, settings, order
    )
    records = {one.name: one.records for one in (active, passive)}
    assert with_splits(active.trees, records) == with_splits(joined.trees, joined.records), (
        "other trees than joined columns"
    )
    spent = {work: active.clock.seconds.get(work, 0.0) + passive.clock.seconds.get(work, 0.0) for work in WORK}
    found = {work: one / settings.rounds for work, one in spent.items()}
    return {**found, "all": seconds / settings.rounds, "MB": sum(post.bytes.values()) / 1e6 / settings.rounds}


def line(label: str, one: Mapping[str, float], first: Mapping[str, float]) -> str:
    cells = [f"{one[work]:.2f}" for work in WORK] + [f"{one['all']:.2f}", f"{one['MB']:.2f}"]
    apart = (first["all"] - first["hiding"]) / (one["all"] - one["hiding"])
    return f"| {label} | " + " | ".join(cells) + f" | {first['all'] / one['all']:.1f} | {apart:.1f} |"


def main(words: list[str] | None = None) -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--key-bits", type=int, default=2048)
    given.add_argument("--rounds", type=int, default=2)
    asked = given.parse_args(words)
    heads = [*WORK, "all", "MB", "times as fast", "without hiding"]
    print(f"{asked.key_bits} bits, processor seconds a round, mean of {asked.rounds}; depth 3, 32 bins\n")
    print("| | " + " | ".join(heads) + " |\n|---" + "|---" * len(heads) + "|")
    for table, (x, y) in ((ROWS, load_breast_cancer(return_X_y=True)), (CLASSES, load_wine(return_X_y=True))):
        first: dict[str, float] = {}
        for label, settings in table.items():
            asked_for = Boosting(rounds=asked.rounds, least_samples=1, **settings)
            one = measured(x, y.astype(float), asked_for, asked.key_bits)
            first = first or one
            print(line(label, one, first), flush=True)


if __name__ == "__main__":
    main()
