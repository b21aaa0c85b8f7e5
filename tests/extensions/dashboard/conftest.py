"""The finished run that the tests of the page share, and the page at work on the loopback."""

import threading
import time

import pytest

from examples.loopback import free_ports
from fedsmall.extensions.dashboard.app import application, server_of
from fedsmall.extensions.dashboard.view import ConsortiumView
from tests.extensions.dashboard.folders import finished

TOKEN = "the-token"


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return finished(tmp_path_factory.mktemp("dashboard"), patch)


@pytest.fixture(scope="package")
def address(folder):
    """Where the page is served by its own program, as a browser finds it."""
    (port,) = free_ports(1)
    server = server_of(application(ConsortiumView(folder), TOKEN), port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()
