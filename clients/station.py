"""A site's station: the long-lived program that holds the data and does all work on them.

It answers on a Unix socket that only its own user can reach, and knows no network. The site's policy is asked before
every answer, and what left is logged after it; tracebacks stay in the station's own log. Handlers are a table
(:data:`fedsmall.clients.handlers.HANDLERS`); extensions add theirs by the entry points ``fedsmall.handlers``.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedsmall.clients.handlers import HANDLERS
from fedsmall.clients.patients import once
from fedsmall.clients.policy import CutError, Pace, Policy, check_time, cut_short, load_policy
from fedsmall.clients.runs import forget_old
from fedsmall.clients.session import Session
from fedsmall.clients.shelf import sealed_by
from fedsmall.clients.site_log import LogEnds
from fedsmall.clients.site_request import Answer, LoggedAnswers
from fedsmall.clients.socket_frames import serve
from fedsmall.ends import KEY_FILE
from fedsmall.entry_points import HANDLERS as GROUP
from fedsmall.entry_points import extensions, load_extension
from fedsmall.errors import PlanError, PolicyError
from fedsmall.wire import Arrays

Extension = Callable[[Policy, Mapping[str, Any], Arrays], Answer]


@dataclass
class Station:
    """One site at work: its ``name``, its file or folder ``data``, the folder ``home`` where it writes.

    ``device`` is where it trains; no message speaks of it.
    """

    name: str
    data: Path | None
    home: Path
    policy_file: Path
    device: str = "cpu"
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self.session = Session(self.name, self.data, self.home, self.policy_file, self.device)
        self.log, self.consent = self.session.log, self.session.consent
        ends = LogEnds(self.log, self.policy_file.with_name(f"{KEY_FILE}.pub"))
        self._logged = LoggedAnswers(self.log, ends, self.consent.is_new, self._handle)
        self._extensions: dict[str, Extension] = {}

    def answer(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """The answer to one message; a refusal or a failure is an answer of one line."""
        try:
            return self._logged.answer(kind, config, arrays)
        except CutError as cut:
            self.__post_init__()  # as a station that is started again: what counts is on the disk
            return replace(self._logged, handle=partial(_refuse, cut.reason)).answer(kind, config, {})

    def _handle(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        extension = None if kind in HANDLERS else self._extension(kind)
        policy = load_policy(self.policy_file)
        policy.check_device(self.device)
        self.pace.check(policy, arrays)
        if kind == "roll":
            forget_old(self.home, self.log, policy.forget_after_days)
        with sealed_by(policy.rest_key), cut_short(partial(self._check_goes_on, kind, policy, time.monotonic())):
            if extension is not None:
                return extension(policy, config, arrays)
            order = self.session.read(kind, policy, config, arrays)
            handle = self.session.letters.wrap(kind, partial(HANDLERS[kind], self.session))
            if kind == "train" and order.plan.privacy.is_patient_level:
                answers = self.session.folder_of(config) / "answers"
                return once(answers, config, arrays, lambda: handle(order))
            return handle(order)

    def _extension(self, kind: str) -> Extension:
        if kind not in self._extensions:
            if kind not in extensions(GROUP):
                raise PlanError("this site was asked for something that it does not know")
            site = self.session
            handler = load_extension(GROUP, kind)(site.name, site.data, site.letters, site.consent)
            self._extensions[kind] = handler.answer
        return self._extensions[kind]

    def _check_goes_on(self, kind: str, policy: Policy, since: float) -> None:
        check_time(policy, time.monotonic() - since)
        self.consent.check_paused(kind)


def _refuse(reason: PolicyError, *_: Any) -> Answer:
    raise reason


def main(arguments: list[str]) -> None:
    """``python -m fedsmall.clients.station NAME HOME POLICY SOCKET DEVICE [DATA]``: what `fedsmall site up` runs."""
    name, home, policy, path, device, *data = arguments
    station = Station(name, Path(data[0]) if data else None, Path(home), Path(policy), device)
    serve(Path(path), station.answer, f"station {name}: ready")


if __name__ == "__main__":
    main(sys.argv[1:])
