"""Three SuperLinks on one machine: the example, and the page that says what coordinators type."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from examples import two_servers
from fedsmall.audit_log import AuditLog
from fedsmall.sim.consortium import server
from fedsmall.sim.consortium import site as sites
from fedsmall.sim.consortium.flower_cli import port_is_free
from fedsmall.sim.consortium.site import Site
from tests import ROOT
from tests.sim.regions.two_levels import page_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.needs("nginx"),
]
PAGE = (ROOT / "docs" / "howto" / "two-servers.md").read_text(encoding="utf-8")
REGIONS = {"north": ("bonn", "essen", "ulm"), "south": ("aachen", "trier")}
FOLDERS = (*REGIONS, "above")


def test_three_real_servers_end_with_the_bits_of_the_simulation(tmp_path_factory):
    folder, plan = tmp_path_factory.mktemp("t"), two_servers.plan_of()

    ends = two_servers.played(folder, plan, print)

    expected = two_servers.digest(two_servers.simulated(plan, folder / "data"))
    assert {where: two_servers.digest(model) for where, model in ends.items()} == dict.fromkeys(
        (*REGIONS, "above"), expected
    )
    for where in ends:
        home = folder / where / "consortium" / "runs" / "tides"
        events = [entry["event"] for entry in AuditLog(home / "log.jsonl").entries()]
        assert "unwritten" not in events
        assert page_of(home).is_file()


def test_the_page_is_followed_from_nothing_to_the_united_model(tmp_path_factory):
    ports = [int(port) for port in re.findall(r"port (\d+)", PAGE)]
    if not all(port_is_free("127.0.0.1", port) for port in ports):
        pytest.skip("a port that the page names is taken on this machine")
    here = tmp_path_factory.mktemp("p")
    (here / "tides.toml").write_text(re.findall(r'^```toml title="tides.toml"\n(.*?)^```', PAGE, re.DOTALL | re.M)[0])
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    variables = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}

    try:
        done = subprocess.run(
            ["bash", "-ec", "\n".join(blocks)], cwd=here, env=variables, capture_output=True, text=True, check=False
        )
        for region in REGIONS:
            _wait_for(here / region / "runs" / "tides" / "outcome.json")
    finally:
        for where in FOLDERS:
            for kit in (here / where / "kits").glob("*"):
                sites.down(Site(kit, kit / "state"))
            server.down(here / where)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "finished after 2 communication rounds" in done.stdout
    noted = {where: json.loads((here / where / "runs/tides/progress.json").read_text())["note"] for where in FOLDERS}
    assert ["times as large as an update" in noted[where] for where in FOLDERS] == [True, True, False]
    models = [load_file(here / where / "runs" / "tides" / "model.safetensors") for where in FOLDERS]
    assert len({two_servers.digest(model) for model in models}) == 1


def _wait_for(path: Path) -> None:
    import time

    until = time.monotonic() + 300
    while not path.exists() and time.monotonic() < until:
        time.sleep(1)
