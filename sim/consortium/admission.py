"""How a site dials the server before it starts anything, and whether the server would let it in.

Flower's programs only log that they failed, so the site first activates its node once and lets go of it. It dials
through the proxy that the environment names (``HTTPS_PROXY``, ``https_proxy``, ``ALL_PROXY``; not for ``NO_PROXY``; on
macOS and Windows also the system's), as they do. TLS is between site and gate: a proxy sees a name, sizes and times.
"""

import ssl
import time
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import httpx

from fedsmall import __version__
from fedsmall.ends import fingerprint
from fedsmall.files import one_line
from fedsmall.sim.consortium import keys
from fedsmall.sim.consortium.gate import STANDING_HEADER
from fedsmall.sim.consortium.members import ADMITTED, REVOKED
from fedsmall.wire import PROTOCOL

DIAL_S = 20.0
DAY_S = 86_400
PROTOCOL_HEADER = "Fedsmall-Protocol"  # of the gate's answers
UNSEEN_S = 0.5  # the server tells whole seconds


class Dialled(NamedTuple):
    """What a server shows: the days left of its certificate, and the ``protocol`` that it speaks ("": not said).

    ``ahead_s`` are the seconds by which this machine's clock is ahead (None: not said).
    """

    days: int
    ahead_s: float | None
    protocol: str


def proxy_of(address: str) -> str:
    """Host and port of the proxy through which an address is dialled, without its password; "" for none."""
    host, known = address.rpartition(":")[0], getproxies()
    proxy = known.get("https") or known.get("all") or ""
    if not proxy or proxy_bypass(host):
        return ""
    url = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
    return f"{url.host}:{url.port}" if url.port else url.host


def check_server(address: str, authority: Path) -> int:
    """Dial the server once; the days that are left of its certificate. ValueError that says what is wrong."""
    dialled = dial(address, authority)
    check_protocol(dialled.protocol)
    return dialled.days


def dial(address: str, authority: Path) -> Dialled:
    """One question to the server over TLS, and what its answer tells. Raises ValueError that says what is wrong."""
    context = ssl.create_default_context(cafile=str(authority))
    before = time.time()
    try:
        with httpx.stream("GET", f"https://{address}/", verify=context, timeout=DIAL_S) as answer:
            shown = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
            when, protocol = answer.headers.get("Date"), answer.headers.get(PROTOCOL_HEADER, "")
    except httpx.HTTPError as error:
        raise ValueError(_explain_error(error, address)) from None
    now = (before + time.time()) / 2
    left = int((ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()) // DAY_S)
    ahead = None if when is None else now - (parsedate_to_datetime(when).timestamp() + UNSEEN_S)
    return Dialled(left, ahead, protocol)


def _explain_error(error: httpx.HTTPError, address: str) -> str:
    proxy = proxy_of(address)
    root: BaseException | None = error  # down to the system's or TLS's error under httpx's
    while root is not None and not isinstance(root, OSError):
        root = root.__cause__ or root.__context__
    if isinstance(error, httpx.ProxyError):
        return f"the proxy {proxy} does not let this site through to {address} ({error}); ask whoever runs the proxy"
    if isinstance(root, ssl.SSLCertVerificationError):
        between = f"; if the proxy {proxy} inspects TLS, it must let {address} pass unopened" if proxy else ""
        return f"{address} shows a certificate that this startup kit does not trust: {root.verify_message}{between}"
    if isinstance(root, ssl.SSLError):
        return f"{address} does not speak TLS ({root.reason}); is this the reverse proxy's port?"
    through = f" through the proxy {proxy}" if proxy else ""
    why = (root.strerror if root else None) or "no answer"
    return f"{address} cannot be reached{through} ({why}); is the server up?"


def check_protocol(protocol: str) -> None:
    """Raise ValueError where the server says that it speaks another protocol than this site."""
    if protocol not in ("", str(PROTOCOL)):
        raise ValueError(
            f"the server speaks protocol {one_line(protocol, 20)}, and fedsmall {__version__} here {PROTOCOL}: "
            "no run would take this site. Install the release that the coordinator names"
        )


def check_clock(ahead: float) -> None:
    """Raise ValueError where Flower would not take a signature of this clock."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    if not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE - UNSEEN_S:
        where = "ahead of" if ahead > 0 else "behind"
        raise ValueError(
            f"this machine's clock is {abs(ahead):.0f} s {where} the server's; Flower takes {SYSTEM_TIME_TOLERANCE} s "
            f"ahead and {TIMESTAMP_TOLERANCE} s behind. Set the clock of whichever is wrong (NTP), then try again"
        )


def check_admission(address: str, authority: Path, key: Path, note: Path, expires: str) -> str:
    """Activate the site's node once and let go of it; one line that says that the site is let in, else ValueError.

    ``note`` keeps Flower's number of the node, for a killed SuperNode counts as connected for a minute.
    """
    from fedsmall.clients.fleet import Fleet  # brings Flower's client, which takes its time

    if (ahead := dial(address, authority).ahead_s) is None:
        raise ValueError(f"{address} does not say what time it is; is this the reverse proxy's port?")
    check_clock(ahead)
    mark = fingerprint(keys.read_public_key(key.with_name(key.name + ".pub")))
    try:
        fleet = Fleet(address, authority.read_bytes(), key, note)
        with fleet.client:
            if fleet.activate():
                fleet.release()
    except httpx.HTTPStatusError as error:
        status, standing = error.response.status_code, error.response.headers.get(STANDING_HEADER, "")
        raise ValueError(_explain_status(status, standing, mark, expires)) from None
    except (httpx.HTTPError, RuntimeError):
        raise ValueError(f"{address} gave no answer that Flower knows; is a server of another release there?") from None
    return f"the server lets this site in: key {mark}, admitted until {expires}, clocks {abs(ahead):.1f} s apart"


def _explain_status(status: int, standing: str, mark: str, expires: str) -> str:
    if status in (httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT):
        return "the reverse proxy answers, but the server behind it does not; the coordinator must start it"
    if date.fromisoformat(expires) < datetime.now(UTC).date():
        return f"this site's admission expired on {expires}; ask the coordinator for a new one"
    if standing == REVOKED:
        return "this site is revoked; the coordinator can admit the hospital under a new name, with a new key"
    if standing == ADMITTED:
        return (
            f"a program with the key {mark} is connected already, or was a minute ago: a copy of this folder runs here "
            "or elsewhere. Stop it, then try again"
        )
    return (
        f"the server does not let this site in (HTTP {status}): it does not know the key {mark}. Read this fingerprint "
        "to the coordinator on the telephone, who compares it with `fedsmall consortium list`"
    )
