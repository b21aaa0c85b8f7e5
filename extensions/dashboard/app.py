"""The coordinator's page as a small web application: three addresses, read-only, and nothing without the token.

It is bound to the loopback, whose port other users reach without the token. As the token is in the page's address,
nothing is loaded from elsewhere, no address is passed on, and none is logged.
"""

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedsmall.extensions.dashboard import page
from fedsmall.extensions.dashboard.view import ConsortiumView
from fedsmall.files import write

LOOPBACK = "127.0.0.1"
LOOK_S = 1.0  # between two looks at the folder
STILL_S = 15.0  # an idle stream says that it lives
CLOSING_S = 1  # how long open streams may keep the program from ending
GUARDS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
POLICY = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "


def application(view: ConsortiumView, token: str) -> Starlette:
    """The application that shows ``view`` to whoever has the ``token``."""

    async def show(request: Request) -> Response:
        if not has_token(request, token):
            return refusal()
        nonce = secrets.token_urlsafe(16)
        policy = f"{POLICY}script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
        return HTMLResponse(page.whole(view, nonce), headers=GUARDS | {"Content-Security-Policy": policy})

    async def events(request: Request) -> Response:
        if not has_token(request, token):
            return refusal()
        return StreamingResponse(news(view, request), media_type="text/event-stream", headers=GUARDS)

    async def figures(request: Request) -> Response:
        if not has_token(request, token):
            return refusal()
        await run_in_threadpool(view.ask)
        return Response(page.metrics_text(view), media_type=page.METRICS_KIND, headers=GUARDS)

    routes = [Route("/", show), Route("/events", events), Route("/metrics", figures)]
    # a page of another name that resolves to this machine (DNS rebinding) is not ours
    named = Middleware(TrustedHostMiddleware, allowed_hosts=[LOOPBACK, "localhost"], www_redirect=False)
    return Starlette(routes=routes, middleware=[named])


def has_token(request: Request, token: str) -> bool:
    """Whether a request brings the token: in its address, or as a bearer's, as Prometheus sends it."""
    given = request.query_params.get("token", "")
    kind, _, word = request.headers.get("authorization", "").partition(" ")
    given = given or (word if kind.lower() == "bearer" else "")
    return hmac.compare_digest(given.encode(), token.encode())


def refusal() -> Response:
    """What anybody else is told."""
    return PlainTextResponse("no: the address that `fedsmall dashboard` prints has a token\n", 403, headers=GUARDS)


async def news(view: ConsortiumView, request: Request) -> AsyncIterator[str]:
    """The page's body as an event, whenever it has changed, for as long as the reader is there."""
    last, still = "", 0.0
    while not await request.is_disconnected():
        await run_in_threadpool(view.ask)
        now = page.body(view)
        if now != last:
            last, still = now, 0.0
            yield f"data: {json.dumps(now)}\n\n"  # JSON has no line ends, which would end the event
        elif still >= STILL_S:
            still = 0.0
            yield ": nothing new\n\n"
        await asyncio.sleep(LOOK_S)
        still += LOOK_S


def token_of(folder: Path) -> str:
    """The token of a consortium's page, made at first use in a file that only its owner can read."""
    path = folder / "server" / "dashboard.token"
    if not path.exists():
        write(path, f"{secrets.token_urlsafe(32)}\n".encode(), flush=True, mode=0o600)
    return path.read_text().strip()


def server_of(app: Starlette, port: int) -> uvicorn.Server:
    """The program that serves the page; it listens on the loopback and nowhere else, and logs no address."""
    quiet: dict[str, Any] = {"access_log": False, "log_level": "warning", "server_header": False}
    plain: dict[str, Any] = {"ws": "none", "lifespan": "off", "timeout_graceful_shutdown": CLOSING_S}
    return uvicorn.Server(uvicorn.Config(app, host=LOOPBACK, port=port, **quiet, **plain))
