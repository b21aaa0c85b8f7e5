"""The units for systemd: their lines are commands that there are; each half of a hospital lacks what it must."""

import configparser
import re

import pytest

from tests import ROOT
from tests.sim.cli.lines import assert_known

UNITS = sorted((ROOT / "docker" / "systemd").glob("*.service"))


def service(name):
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "docker" / "systemd" / f"fedsmall-{name}.service")
    return unit["Service"]


def test_there_is_one_for_every_long_lived_command():
    assert [path.stem for path in UNITS] == [f"fedsmall-{n}" for n in ("dashboard", "network", "server", "station")]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["server", "dashboard", "station", "network"])
def test_a_unit_starts_a_command_that_there_is_and_gains_no_rights(name):
    one = service(name)

    program, _, line = one["ExecStart"].partition(" ")
    assert program == "/opt/fedsmall/bin/fedsmall"
    assert_known(line)
    assert one["NoNewPrivileges"] == one["PrivateTmp"] == one["ProtectHome"] == "yes"
    assert one["ProtectSystem"] == "strict"
    may = {"server": "CAP_NET_BIND_SERVICE"}.get(name, "")  # the gate at port 443
    assert (one["CapabilityBoundingSet"], one.get("AmbientCapabilities", "")) == (may, may)
    assert one["UMask"] == "0077"
    assert one["LimitCORE"] == "0"  # a core holds patients, or keys
    assert re.fullmatch(r"\d+G", one["MemoryMax"])
    assert int(one["TasksMax"]) <= 1024
    assert one["User"] == "fedsmall"


def test_who_has_the_data_has_no_network_and_no_key():
    station, network = service("station"), service("network")

    assert station["PrivateNetwork"] == "yes"
    assert station["RestrictAddressFamilies"] == "AF_UNIX"
    assert "/etc/fedsmall/network" in station["InaccessiblePaths"]
    assert "--kit /etc/fedsmall/network" in network["ExecStart"]
    assert "/srv/patients" in network["InaccessiblePaths"]
    assert "--data" not in network["ExecStart"]


def test_the_halves_share_a_socket_where_each_looks_for_it():
    station, network = service("station"), service("network")

    homes = [re.search(r"--home (\S+)", unit["ExecStart"]).group(1) for unit in (station, network)]
    assert network["BindPaths"] == ":".join(f"{home}/door" for home in homes)
    for unit, home in zip((station, network), homes, strict=True):
        assert f"{home.removeprefix('/var/lib/')}/door" in unit["StateDirectory"].split()
        assert unit["StateDirectoryMode"] == "0700"
