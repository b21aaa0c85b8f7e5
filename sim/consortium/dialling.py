"""How a site dials the server before it starts anything: through the proxy that the environment names, or directly.

``HTTPS_PROXY`` (or ``https_proxy``, ``ALL_PROXY``) is a proxy that is asked to CONNECT, ``NO_PROXY`` what is dialled
without it; on macOS and Windows the system's settings count too. So do they for the site's programs, whose client is
the same. TLS is between the site and the gate: a proxy sees the server's name, and how much and when.
"""

import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import httpx

DIAL_S = 20.0
DAY_S = 86_400
UNSEEN_S = 0.5  # the server tells whole seconds


class Dialled(NamedTuple):
    """What a first answer tells: days that are left of the server's certificate, and its clock (None: not told).

    ``ahead_s`` are the seconds by which this machine's clock is ahead of the server's; negative: behind.
    """

    days: int
    ahead_s: float | None


def proxy_of(address: str) -> str:
    """Host and port of the proxy through which an address is dialled, without its password; "" for none."""
    host, known = address.rpartition(":")[0], getproxies()
    proxy = known.get("https") or known.get("all") or ""
    if not proxy or proxy_bypass(host):
        return ""
    url = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
    return f"{url.host}:{url.port}" if url.port else url.host


def check_server(address: str, authority: Path) -> int:
    """Dial the server once, as the site's programs will, and return the days that are left of its certificate.

    Raises ValueError that says what is wrong.
    """
    return dial(address, authority).days


def dial(address: str, authority: Path) -> Dialled:
    """One question to the server over TLS, and what its answer tells. Raises ValueError that says what is wrong."""
    context = ssl.create_default_context(cafile=str(authority))
    before = time.time()
    try:
        with (
            httpx.Client(verify=context, timeout=DIAL_S) as client,
            client.stream("GET", f"https://{address}/") as answer,
        ):
            shown = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
            when = answer.headers.get("Date")
    except httpx.HTTPError as error:
        raise ValueError(_explained(error, address)) from None
    now = (before + time.time()) / 2
    left = int((ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()) // DAY_S)
    return Dialled(left, None if when is None else now - (parsedate_to_datetime(when).timestamp() + UNSEEN_S))


def _explained(error: httpx.HTTPError, address: str) -> str:
    """What is wrong, in words that say who must mend it."""
    root, proxy = _system_error(error), proxy_of(address)
    if isinstance(error, httpx.ProxyError):
        return f"the proxy {proxy} does not let this site through to {address} ({error}); ask whoever runs the proxy"
    if isinstance(root, ssl.SSLCertVerificationError):
        between = f"; if the proxy {proxy} inspects TLS, it must let {address} pass unopened" if proxy else ""
        return f"{address} shows a certificate that this kit does not trust: {root.verify_message}{between}"
    if isinstance(root, ssl.SSLError):
        return f"{address} does not speak TLS ({root.reason}); is this the gate's port?"
    through = f" through the proxy {proxy}" if proxy else ""
    why = (root.strerror if root else None) or "no answer"
    return f"{address} cannot be reached{through} ({why}); is the server up?"


def _system_error(error: BaseException | None) -> OSError | None:
    """What the system or TLS said, under what httpx made of it."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
