"""A site's side of what the two ends tell each other of their logs (:mod:`fedsmall.ends`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsmall.clients.site_log import PUT_BACK, BrokenLogError, SiteLog
from fedsmall.ends import ENDS, OrderEnds, Statement
from fedsmall.errors import PolicyError
from fedsmall.run_sheet import RUN_ID

Config = Mapping[str, Any]


class LogEnds:
    """Holds a site to what it has signed; ``public`` is the file of its public key.

    Without that file a coordinator's word is taken for what was signed: it can do no more than stop this site.
    """

    def __init__(self, log: SiteLog, public: Path) -> None:
        self.log, self.public = log, public

    def taken(self, config: Config) -> tuple[OrderEnds | None, Config]:
        """What an order says of the logs, None where it says nothing; and the rest of its config.

        Raises BrokenLogError where the log here does not go on from what was written or signed, and PolicyError for
        words that cannot be read, or that this site never signed.
        """
        self.log.check_stands()
        rest = {key: value for key, value in config.items() if key != ENDS}
        if ENDS not in config:
            return None, rest
        try:
            order = OrderEnds.model_validate_json(str(config[ENDS]))
        except ValidationError:
            raise PolicyError("what the order says of the logs cannot be read") from None
        if order.held is not None:
            self._check_held(order.held)
        return order.model_copy(update={"id": str(config.get(RUN_ID, ""))[:64]}), rest

    @staticmethod
    def fields(order: OrderEnds | None) -> dict[str, Any]:
        """What the line of an answer holds of the order: its run's id, and its line in the coordinator's log."""
        return {"id": order.id, "seen": order.line, "seen_head": order.head} if order else {}

    def said(self, order: OrderEnds | None, entry: Mapping[str, Any]) -> dict[str, Any]:
        """What an answer says of the log, which ``entry`` tells of it; to be signed by who has the key."""
        if order is None:
            return {}
        place = {"line": entry["n"], "head": entry["digest"], **self.fields(order)}
        return {ENDS: Statement(site=self.log.name, run=entry["run"], **place).model_dump()}

    def _check_held(self, held: Statement) -> None:
        if self.public.exists() and not held.is_by(self.public.read_bytes()):
            raise PolicyError("the order holds a line of this site's log that this site never signed")
        if held.site != self.log.name:
            raise PolicyError("the order holds what another site has signed")
        if (found := self.log.digest_at(held.line)) != held.head:
            lines = self.log.lines
            what = f"the log here has {lines}" if lines < held.line else f"that line is another here ({found[:16]})"
            raise BrokenLogError(
                f"this site's log was cut off, replaced or put back to an older state: this site has signed line "
                f"{held.line} of it, and {what}. {PUT_BACK}"
            )
