"""``fedsmall dashboard``: a page on the consortium for the coordinator's browser."""

from typing import Annotated

from typer import Option

from fedsmall.sim.cli.consortium import HERE, Folder
from fedsmall.sim.cli.options import say
from fedsmall.sim.consortium.flower_cli import port_is_free


def dashboard(
    folder: Folder = HERE,
    port: Annotated[int, Option(min=1, max=65535, help="the page's port, on the loopback")] = 8780,
) -> None:
    """Show the consortium's sites and runs on a page that follows them, for a browser on this machine."""
    from fedsmall.extensions.dashboard.app import LOOPBACK, application, server_of, token_of  # brings torch: slow
    from fedsmall.extensions.dashboard.view import ConsortiumView

    view = ConsortiumView(folder)
    if not port_is_free(LOOPBACK, port):
        raise ValueError(f"port {port} is taken by another program; choose another with --port")
    token = token_of(folder)
    say(f"http://{LOOPBACK}:{port}/?token={token}")
    say("Whoever has this address and an account on this machine can read the page, and change nothing there.")
    say(f"For Prometheus: /metrics there, with the token in {folder / 'server' / 'dashboard.token'} as a bearer's.")
    say("From another machine: ssh -L, never an open port. Ctrl-C ends it.")
    server_of(application(view, token), port).run()
