"""Whether the server would let a site in: its clock, its key and its admission, asked once before anything starts.

Flower's programs would say no more than that they failed, and only in their own log. So the site dials once as they
will, activates its node, and lets go of it again.
"""

from datetime import UTC, date, datetime
from pathlib import Path

import httpx
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from fedsmall.clients.network.fleet import Fleet
from fedsmall.sim.consortium import keys
from fedsmall.sim.consortium.dialling import UNSEEN_S, dial


def clock_ahead(address: str, authority: Path) -> float:
    """Seconds by which this machine's clock is ahead of the server's, by the date in its answer; negative: behind."""
    ahead = dial(address, authority).ahead_s
    if ahead is None:
        raise ValueError(f"{address} does not say what time it is; is this the gate's port?")
    return ahead


def check_clock(ahead: float) -> None:
    """Raise ValueError where Flower would not take a signature of this clock."""
    if not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE - UNSEEN_S:
        where = "ahead of" if ahead > 0 else "behind"
        raise ValueError(
            f"this machine's clock is {abs(ahead):.0f} s {where} the server's; Flower takes {SYSTEM_TIME_TOLERANCE} s "
            f"ahead and {TIMESTAMP_TOLERANCE} s behind. Set the clock of whichever is wrong (NTP), then try again"
        )


def check_admission(address: str, authority: Path, key: Path, note: Path, expires: str) -> str:
    """Activate the site's node once and let go of it; one line that says that the site is let in.

    ``note`` keeps Flower's number of the node: a SuperNode that was killed counts as connected for a minute, and only
    by its number can it be told from one that is not admitted. Raises ValueError where the site is not let in.
    """
    ahead = clock_ahead(address, authority)
    check_clock(ahead)
    mark = keys.fingerprint(keys.read_public_key(key.with_name(key.name + ".pub")))
    try:
        _activate(address, authority, key, note)
    except httpx.HTTPStatusError as error:
        _explain(error.response.status_code, mark, expires)
    except (httpx.HTTPError, RuntimeError) as error:
        raise ValueError(f"{address} gave no answer that Flower knows ({type(error).__name__})") from None
    return f"the server lets this site in: key {mark}, admitted until {expires}, clocks {abs(ahead):.1f} s apart"


def _activate(address: str, authority: Path, key: Path, note: Path) -> None:
    fleet = Fleet(address, authority.read_bytes(), key, note)
    with fleet.client:
        if fleet.activate():
            fleet.release()


def _explain(status: int, mark: str, expires: str) -> None:
    if status in (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT):
        raise ValueError("the gate answers, but the server behind it does not; the coordinator must start it")
    if date.fromisoformat(expires) < datetime.now(UTC).date():
        raise ValueError(f"this site's admission expired on {expires}; ask the coordinator for a new one") from None
    raise ValueError(
        f"the server does not let this site in (HTTP {status}): it does not know the key {mark}, or has revoked it. "
        "Read this fingerprint to the coordinator on the telephone, who compares it with `fedsmall consortium list`"
    ) from None
