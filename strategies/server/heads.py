"""The heads of the sites' logs: the last line that each site has signed, over all runs.

Every order carries the site's own, so it learns when its log was cut off or put back; every answer must go on from it.
"""

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsmall.ends import OrderEnds, Statement, statement_of
from fedsmall.errors import ReplyError
from fedsmall.files import write
from fedsmall.planning.run_sheet import Sheet

FILE = "heads.json"


class Heads:
    """The statements of one run's sites, kept in ``folder`` (NAME.pub beside ``heads.json``) for all runs.

    A site without a public key there may answer without a statement.
    """

    def __init__(self, folder: Path | None, sheet: Sheet) -> None:
        self.folder, self.sheet = folder, sheet
        self.keys = {} if folder is None else public_keys(folder, sheet.sites)
        self.held = {} if folder is None else read(folder)
        self._asked: dict[str, OrderEnds] = {}
        self._new: dict[str, Statement] = {}

    def order(self, site: str, entry: Mapping[str, Any]) -> str:
        """The statement for an order to a site, as JSON; ``entry`` is the order's line in the run's log."""
        self._asked[site] = OrderEnds(line=entry["n"], head=entry["digest"], held=self.held.get(site))
        return self._asked[site].model_dump_json(exclude_defaults=True)

    def check_statement(self, site: str, content: Any) -> Statement | None:
        """The statement in a site's answer. Raises ReplyError where it does not go on from the last one."""
        statement, asked = statement_of(content), self._asked.get(site)
        if site not in self.keys and statement is None:
            return None
        if statement is None:
            raise ReplyError("its answer does not say where its log stands")
        if site in self.keys and not statement.is_by(self.keys[site]):
            raise ReplyError("where its log stands is not signed with its key")
        if (statement.site, statement.run, statement.id) != (site, self.sheet.run, self.sheet.id):
            raise ReplyError("what it signed is of another site's log, or of another run")
        if asked is None or (statement.seen, statement.seen_head) != (asked.line, asked.head):
            raise ReplyError("what it signed is of another order")
        if asked.held is not None and statement.line <= asked.held.line:
            raise ReplyError(
                f"its log was cut off or put back to an older state: it signed line {asked.held.line} before, and "
                f"line {statement.line} now"
            )
        self.held[site] = self._new[site] = statement
        return statement

    def keep(self) -> None:
        """Write down new statements; of two runs at once, the later line stays."""
        if self.folder is None or not self._new:
            return
        with (self.folder / "heads.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            statements = read(self.folder)
            for site, statement in self._new.items():
                if site not in statements or statement.line > statements[site].line:
                    statements[site] = statement
            records = {site: statement.model_dump() for site, statement in sorted(statements.items())}
            write(self.folder / FILE, json.dumps(records, indent=1).encode(), flush=True, mode=0o600)
        self.held, self._new = self.held | statements, {}


def read(folder: Path) -> dict[str, Statement]:
    """The last statement of every site. Raises ValueError where the file cannot be read: it must not be begun anew."""
    path = folder / FILE
    try:
        return {} if not path.exists() else {k: Statement(**v) for k, v in json.loads(path.read_text()).items()}
    except (ValueError, TypeError, AttributeError, ValidationError):
        raise ValueError(f"{FILE}, which holds what sites signed of their logs, is damaged; put a copy back") from None


def public_keys(folder: Path, sites: tuple[str, ...]) -> dict[str, bytes]:
    """The public keys of these sites that are in a folder, by name."""
    paths = {site: folder / f"{site}.pub" for site in sites}
    return {site: path.read_bytes() for site, path in paths.items() if path.exists()}
