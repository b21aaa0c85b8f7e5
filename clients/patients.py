"""Patient-level privacy at a real site: the account over all runs, and answers that are given once."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.audit_log import digest_of
from fedsmall.clients.memory import KEEP
from fedsmall.clients.policy import Policy
from fedsmall.clients.shelf import Shelf
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.site_request import Answer
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN
from fedsmall.privacy.patient_level import Charge, check_noise, epsilon_of, protection_of, steps_of
from fedsmall.wire import ROUND, ROUNDS, Arrays


def check_affordable(
    log: SiteLog, policy: Policy, plan: Plan, own: np.ndarray, rank: tuple[int, int], run: str
) -> None:
    """Raise PolicyError where a whole run, on top of all others, would cost more than the policy allows.

    ``own`` are its samples' shares, ``rank`` the site's index and the count of sites. PlanError for uncountable noise.
    """
    check_noise(plan, {rank[0]: own}, rank[1])
    whole = protection_of(plan, own, *rank).charge(steps_of(plan, *rank))
    others = [charge for other, charge in log.charges() if other != run]
    before = [charge for other, charge in log.charges() if other == run]
    policy.check_patients(max(_epsilon(policy, [*others, whole]), _epsilon(policy, [*others, *before])), plan)


def charge_comm_round(
    log: SiteLog, policy: Policy, plan: Plan, own: np.ndarray, rank: tuple[int, int], config: Mapping[str, Any]
) -> None:
    """Charge an order's steps before any is taken; more may be charged than is ever sent, never less.

    Raises PolicyError where they are not allowed, PlanError beyond the plan's steps, for which its noise was computed.
    """
    rounds = int(config[ROUNDS])
    assert plan.recipe.steps is not None
    charge = protection_of(plan, own, *rank).charge(rounds * plan.recipe.steps)
    before = sum(charged.steps for run, charged in log.charges() if run == str(config[RUN]))
    if plan.privacy.epsilon is not None and before + charge.steps > steps_of(plan, *rank):
        raise PlanError("this run has had all the local steps here that its epsilon was reckoned for")
    policy.check_patients(_epsilon(policy, [*(charged for _, charged in log.charges()), charge]), plan)
    log.charge(charge, run=str(config[RUN]), t=config[ROUND])


def spent_here(log: SiteLog, delta: float) -> list[tuple[str, float]]:
    """For each run, the epsilon that it has cost this site's patients; at the end that of "all runs"."""
    of_run: dict[str, list[Charge]] = {}
    for run, charge in log.charges():
        of_run.setdefault(run, []).append(charge)
    epsilons = [(run, epsilon_of(charges, delta)) for run, charges in of_run.items()]
    return [*epsilons, ("all runs", epsilon_of([c for _, c in log.charges()], delta))] if epsilons else []


def once(folder: Path, config: Mapping[str, Any], arrays: Arrays, answer: Callable[[], Answer]) -> Answer:
    """The answer to an order; in the last few rounds the very same order gets the same answer, at no cost."""
    words = {key: value for key, value in config.items() if isinstance(value, str | int | float | bool | list | tuple)}
    digest = digest_of(arrays) + json.dumps(words, sort_keys=True, default=list)
    shelf, t = Shelf(folder), int(config[ROUND])
    before = shelf.get(t)
    if before is not None and before.words and before.words["order"] == digest:
        return before.words["header"], before.arrays
    shelf.drop(t)
    header, sent = answer()
    shelf.put(t, sent, {"order": digest, "header": header})
    shelf.keep_last(KEEP)
    return header, sent


def _epsilon(policy: Policy, charges: list[Charge]) -> float:
    return 0.0 if policy.most_epsilon is None else epsilon_of(charges, policy.delta)
