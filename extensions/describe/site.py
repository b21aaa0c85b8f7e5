"""A site that is asked for a first table: what it may tell, of whom it has told before. It leaves in a secure sum."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsmall.clients.consent import Consent
from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import scaling_of
from fedsmall.clients.sealing import Encryption
from fedsmall.clients.site_request import Answer, SiteRequest, check_order, plan_of
from fedsmall.clients.telling import Guard, columns_withheld, is_grouped_alike, rows_to_tell
from fedsmall.data.federation import Samples
from fedsmall.errors import PlanError, PolicyError
from fedsmall.extensions.describe.tables import count, grid, patients_of, shapes
from fedsmall.planning.run_sheet import RUN
from fedsmall.planning.tasks import load_site
from fedsmall.wire import Arrays

DESCRIBE = "describe"  # the kind of the question, and the name of a run's sheet
LABEL = "first table, no model"  # of the plan, as the hospital that approves it reads it
TOLD = "told_described.json"  # beside a site's other files of whom sums were told


class DescribeClient:
    """What the site ``name`` tells of the table in ``data``; ``encryption`` has the keys of its run."""

    def __init__(self, name: str, data: Path | None, encryption: Encryption, consent: Consent) -> None:
        self.name, self.data, self.encryption, self.consent = name, data, encryption, consent

    def answer(self, policy: Policy, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """What the site counts, under masks; the same where it is asked again.

        Raises PolicyError where the policy forbids it, and PlanError in a run that trains, or shows sites' own sums.
        """
        plan = plan_of(config)
        if plan.method.label != LABEL or not plan.privacy.secure:
            raise PlanError("a site describes its patients in a run of `fedsmall describe` alone, in a secure sum")
        if not policy.judge:
            raise PolicyError("the policy here lets no sums over patients be told (judge)")
        raw = load_site(plan, self.name, self.data)
        order, folder = SiteRequest(plan, policy, raw, config, {}), self.encryption.folder_of(config)
        check_order(DESCRIBE, order, folder)  # of the handshake's plan, which policy and hospital have let in
        self.consent.check_paused(DESCRIBE)
        floor = max(policy.count_floor, raw.floor)
        patients = patients_of(raw, floor)
        ends = grid(raw.preparation.with_scaling(scaling_of(folder) if raw.scaled else None))
        guard = Guard(self.encryption.home / TOLD, self.encryption.log, str(config[RUN]))
        samples = Samples(patients.x, patients.group, digests=patients.digests)
        rows = rows_to_tell(guard, samples, floor)
        rows = rows if is_grouped_alike(guard, samples[rows], plan) else rows[:0]
        patients = patients._replace(x=patients.x[rows], group=patients.group[rows])
        counts = count(patients, ends, floor, columns_withheld(guard, patients.x, patients.names, floor))
        of = shapes(len(patients.names), len(patients.groups), patients.is_survival)
        return {"config": {}}, self.encryption.mask_sums(order, DESCRIBE, counts, of)
