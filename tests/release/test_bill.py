"""The bill of materials (SBOM): all that the wheel brings, in the versions that are tested, with digests that hold."""

import json
import re
import subprocess
import sys
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DIGEST = re.compile("[0-9a-f]{64}")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bill")
    call = ["make", "sbom", f"DIST={folder}", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.ready"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    if "error sending request" in done.stderr or "Failed to fetch" in done.stderr:
        pytest.skip("no package index is reached")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def bill(made):
    return json.loads((made / "sbom.cdx.json").read_text())


def brought_by(name: str) -> set[str]:
    """The distributions that are installed here because this one is: what pip takes for a plain install of it."""
    found, waiting = set(), [(name, frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            is_taken = [needed.marker.evaluate({"extra": e}) for e in extras or [""]] if needed.marker else [True]
            if any(is_taken) and (canonicalize_name(needed.name), frozenset(needed.extras)) not in found:
                found.add((canonicalize_name(needed.name), frozenset(needed.extras)))
                waiting.append((needed.name, frozenset(needed.extras)))
    return {name for name, _ in found}


def test_every_distribution_that_a_plain_install_brings_is_named_in_the_version_that_is_tested_with_digests(bill):
    components = {canonicalize_name(of["name"]): of for of in bill["components"]}
    brought = brought_by("fedsmall")
    assert {"torch", "flwr", "numpy", "cryptography", "grpcio"} < brought
    assert brought <= components.keys()
    for name in brought:
        assert components[name]["version"] == distribution(name).version.partition("+")[0], name
    for of in components.values():
        hashes = [one for place in of["externalReferences"] for one in place.get("hashes", ())]
        assert hashes
        assert all(one["alg"] == "SHA-256" and DIGEST.fullmatch(one["content"]) for one in hashes)
        assert of["purl"] == f"pkg:pypi/{of['name']}@{of['version']}".replace("_", "-")
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("fedsmall", distribution("fedsmall").version)


def test_a_file_of_the_index_has_a_digest_of_the_bill_and_one_of_another_digest_is_refused(made, bill, tmp_path):
    lines = (made / "requirements.txt").read_text()
    (wanted,) = re.findall(r"^typing-extensions==[^\n]*\\\n(?: +--hash=[^\n]*\n)+", lines, re.MULTILINE)
    (places,) = (of["externalReferences"] for of in bill["components"] if of["name"] == "typing-extensions")
    assert {one["content"] for place in places for one in place["hashes"]} == set(DIGEST.findall(wanted))

    def fetch(text):
        (tmp_path / "one.txt").write_text(text)
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--no-cache-dir"]
        return subprocess.run([*call, "-r", "one.txt", "-d", "files"], cwd=tmp_path, capture_output=True, text=True)

    assert fetch(wanted).returncode == 0
    assert list((tmp_path / "files").iterdir())
    (tmp_path / "files").rename(tmp_path / "taken")
    refused = fetch(DIGEST.sub("0" * 64, wanted))
    assert refused.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
