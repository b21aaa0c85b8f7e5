"""Answers that are in the site's log before they leave, refusals and failures too; each is one line to who asked."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsmall.audit_log import manifest
from fedsmall.clients.consent import WaitsError
from fedsmall.clients.log_ends import LogEnds
from fedsmall.clients.patients import Answer
from fedsmall.clients.site_log import BrokenLogError, SiteLog
from fedsmall.clients.site_request import TOLD, reason_of
from fedsmall.files import DiskFullError, one_line
from fedsmall.run_sheet import RUN
from fedsmall.wire import BROKEN, ROUND, WAITS, Arrays

Handle = Callable[[str, Mapping[str, Any], Arrays], Answer]
FAILED = "its program failed; the traceback is in the station's log at the site"


@dataclass
class LoggedAnswers:
    """The door of a site's program: what ``handle`` answers is written to ``log`` first, by the line that it names.

    ``is_new(run, reason)`` says whether a run was not told so before: who asks again needs one line in the log.
    """

    log: SiteLog
    ends: LogEnds
    is_new: Callable[[str, str], bool]
    handle: Handle

    def answer(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """The answer to one message; a refusal or a failure is an answer too, of one line."""
        try:
            return self._logged(one_line(kind, 20), one_line(config.get(RUN, ""), 100), config, arrays)
        except BrokenLogError as error:  # nothing is written to it, so that it can be put back
            print(error, flush=True)
            return {"error": f"{self.log.name}: {error}; nothing was sent", "code": BROKEN}, {}
        except (*TOLD, OSError) as error:  # what the log does not hold does not leave
            traceback.print_exc()
            return {"error": f"{self.log.name}: {one_line(reason_of(error), 300)}; nothing was sent"}, {}

    def _logged(self, kind: str, run: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        try:
            order, config = self.ends.taken(config)
            header, leaving = self.handle(kind, config, arrays)
        except BrokenLogError:
            raise
        except WaitsError as error:
            return self._wait(kind, run, str(error))
        except (*TOLD, DiskFullError) as error:
            return self._refuse(kind, run, one_line(reason_of(error), 300))
        except Exception:
            traceback.print_exc()  # to the station's own log, which stays here
            return self._refuse(kind, run, FAILED)
        fields = {"metrics": header["metrics"]} if "metrics" in header else {"said": sorted(header.get("config", {}))}
        fields |= self.ends.fields(order)
        entry = self.log.write("sent", run=run, kind=kind, t=config.get(ROUND), **fields, **manifest(leaving))
        return {**header, **self.ends.said(order, entry)}, leaving

    def _wait(self, kind: str, run: str, reason: str) -> Answer:
        if self.is_new(run, reason):
            self.log.write("waits", run=run, kind=kind, reason=reason)
        return {"error": f"{self.log.name}: {reason}", "code": WAITS}, {}

    def _refuse(self, kind: str, run: str, reason: str) -> Answer:
        self.log.write("refused", run=run, kind=kind, reason=reason)
        return {"error": f"{self.log.name}: {reason}"}, {}
