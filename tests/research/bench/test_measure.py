"""The benchmark compares only what does the same."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import typer
from rich.console import Console

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.research.bench import contenders
from fedsmall.research.bench.command import _keys, _show, _write
from fedsmall.research.bench.figure import figure
from fedsmall.research.bench.measure import measure
from fedsmall.research.bench.timing import Measured, Timing, peak_bytes
from fedsmall.research.bench.workloads import WORKLOADS, Workload, small_mlps
from fedsmall.sim.engines.inprocess import InProcessGrid
from tests.fedsmall.training.second_device import second_device
from tests.sim.engines.harness import assert_equal_bits

PLAIN = ("cohort", "bare loop", "vmap", "modules")


def little(work: Workload, names: tuple[str, ...], sites: int = 4) -> Workload:
    """A workload of which nothing is left but its kind."""
    return replace(work, sites=sites, samples=3, rounds=dict.fromkeys(names, 3), check=3)


def test_all_ways_to_train_small_networks_come_to_the_same_loss() -> None:
    measured = measure(little(small_mlps(), PLAIN), 2, "cpu")

    assert [m.contender for m in measured] == list(PLAIN)
    assert max(m.loss for m in measured) - min(m.loss for m in measured) < 1e-5
    assert all(len(m.rates) == 2 and min(m.rates) > 0 for m in measured)


def test_all_ways_meet_at_the_same_radon_point() -> None:
    work = little(WORKLOADS["B"], PLAIN, sites=21)

    measured = measure(work, 1, "cpu")

    assert max(m.loss for m in measured) - min(m.loss for m in measured) < 1e-5


@pytest.mark.parametrize("key", ["C", "D"])
def test_modules_and_the_packed_network_come_to_the_same_loss(key: str) -> None:
    work = replace(little(WORKLOADS[key], ("cohort", "modules"), sites=2), check=1)

    measured = measure(replace(work, rounds={"cohort": 1, "modules": 1}), 1, "cpu")

    assert measured[0].loss == pytest.approx(measured[1].loss, abs=1e-4)


@pytest.mark.parametrize("name", ["JAX", "FedLab", "pfl-research"])
def test_other_frameworks_average_to_the_same_loss(name: str) -> None:
    pytest.importorskip(contenders.RIVALS[name], reason=f"{name} is not installed")

    measured = measure(little(WORKLOADS["E"], ("cohort", name)), 1, "cpu")

    assert measured[0].loss == pytest.approx(measured[1].loss, abs=1e-5)


@pytest.mark.parametrize("name", ["JAX", "FedLab", "pfl-research"])
def test_a_rival_that_cannot_be_imported_is_a_line_in_the_table(name, monkeypatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    package = contenders.RIVALS[name]  # whose import must fail, installed or not
    for module in {package, *(known for known in sys.modules if known.startswith(f"{package}."))}:
        monkeypatch.setitem(sys.modules, module, None)
    work = little(WORKLOADS["E"], ("cohort", name, "modules"))
    console = Console(record=True, width=120)

    measured = measure(work, 1, "cpu")
    _show(console, work, measured)
    _write(tmp_path, measured, [], "cpu", None, None)

    assert [bool(m.rates) for m in measured] == [True, False, True]
    assert re.search(rf"{name} +│ +not installed", console.export_text())
    written = json.loads((tmp_path / "bench.json").read_text(), parse_constant=pytest.fail)
    assert [m["contender"] for m in written["measured"]] == ["cohort", "modules"]


def test_a_fault_of_our_own_engine_is_not_taken_for_a_missing_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedsmall.sim.engines.inprocess", None)

    with pytest.raises(ImportError, match=r"sim\.engines\.inprocess"):
        measure(little(WORKLOADS["E"], ("one by one",)), 1, "cpu")


@pytest.mark.thorough
def test_the_pace_of_later_comm_rounds_stands_for_the_first() -> None:
    work = little(WORKLOADS["E"], ("cohort",))
    federation = work.federation()
    plan = work.plan.model_copy(update={"rounds": 6})
    give_federation(plan, federation)

    class SlowStart(InProcessGrid):
        """The first two communication rounds take ten seconds each, every other one: on a clock of its own."""

        now = comm_rounds = 0

        def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
            orders = list(messages)
            if orders[0].metadata.message_type.startswith("train"):
                self.comm_rounds += 1
                self.now += 10 if self.comm_rounds <= 2 else 1
            return super().send_and_receive(orders, timeout=timeout)

        def clock(self, device):  # type: ignore[no-untyped-def]
            began = self.now
            return SimpleNamespace(read=lambda: (self.now - began, self.now - began))

    slow, late = (SlowStart(app, len(federation.names)) for _ in range(2))
    whole = contenders._conducted(plan, federation, slow, clock_of=slow.clock)
    paced = contenders._conducted(plan, federation, late, warm=2, clock_of=late.clock)

    assert whole.seconds == 2 * 10 + 4
    assert paced.seconds == 6


def test_a_contender_that_does_something_else_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(plan, federation, device):  # type: ignore[no-untyped-def]
        return Timing(0.001, 0.001, contenders.initial_model(plan, federation.task))

    monkeypatch.setitem(contenders.CONTENDERS, "bare loop", idle)

    with pytest.raises(ValueError, match=r"after 3 rounds bare loop has a loss of .* cannot be compared"):
        measure(little(small_mlps(), ("cohort", "bare loop")), 1, "cpu")


def test_an_unknown_workload_is_named() -> None:
    with pytest.raises(typer.BadParameter, match="letters of ABCDE"):
        _keys("AX")


def test_the_figure_has_a_panel_for_each_workload_and_each_quantity() -> None:
    measured = [Measured("A", "cohort", 0.5, [100.0]), Measured("A", "modules", 0.5, [5.0])]
    growth = [{"varied": "sites", "sites": n, "rate": 1000.0} for n in (50, 500)]

    drawn = figure(measured, growth)

    titles = [axes.get_title(loc="left") or axes.get_title() for axes in drawn.axes]
    assert titles == ["A: client updates a second", "microseconds per client update"]


@pytest.mark.parametrize(("key", "name"), [("A", "cohort"), ("A", "bare loop"), ("C", "cohort")])
def test_a_contender_does_on_a_device_what_it_does_on_the_cpu(key, name, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    work = little(WORKLOADS[key], (name,))
    plan, federation = work.plan.model_copy(update={"rounds": 3}), work.federation()
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    here = contenders.CONTENDERS[name](plan, federation, "cpu").model

    with second_device() as place:
        there = contenders.CONTENDERS[name](plan, federation, place).model  # type: ignore[arg-type]

    assert_equal_bits(here, there)
    assert waited == ([] if name == "cohort" else [place])  # the cohort's model comes back as numbers


@pytest.mark.gpu
@pytest.mark.parametrize("name", PLAIN)
def test_a_contender_comes_to_the_same_loss_on_a_gpu(name: str) -> None:
    work = little(small_mlps(), (name,))

    here, there = (measure(work, 1, device)[0] for device in ("cpu", "cuda"))

    assert there.loss == pytest.approx(here.loss, abs=1e-5)
    assert there.rate > 0


@pytest.mark.gpu
def test_a_gpu_says_what_it_has_held() -> None:
    before = peak_bytes("cuda")
    torch.zeros(2**28, device="cuda")

    assert peak_bytes("cuda") >= before + 2**28
