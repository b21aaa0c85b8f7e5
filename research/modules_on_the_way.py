"""How many modules one passes from ``fedsmall run`` to the first aggregate: what a newcomer must open to follow it.

A module counts where one of its functions is called before :func:`fedsmall.aggregation.aggregate.aggregate` is entered.
``python -m fedsmall.research.modules_on_the_way`` prints them, each with how many of its functions were called.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.sim.cli.app import Commands

HOME = Path(__file__).parents[1]
PRODUCT = ("fedsmall", "strategies", "clients", "sim", "extensions")
PLAIN = """name = "plain"
task = "synthetic"
sites = 3
samples_per_site = 10
rounds = 10
engine = "cohort"

[[method]]
name = "FedDC"
"""


class _FirstAggregate(BaseException):
    """Ends the run: what follows is no more on the way."""


def modules_on_the_way() -> Counter[str]:
    """The product's modules that a plain run passes, FedDC over three sites on the engine cohort; functions of each.

    It is run once before, so that no import is counted.
    """
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder, "plain.toml")
        scenario.write_text(PLAIN)
        _run(scenario, Path(folder, "first"))
        passed: set[CodeType] = set()

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                passed.add(frame.f_code)
                if frame.f_code is aggregate.__code__:
                    raise _FirstAggregate

        sys.setprofile(note)
        try:
            _run(scenario, Path(folder, "second"))
        except _FirstAggregate:
            pass
        finally:
            sys.setprofile(None)
    return Counter(name for code in passed if (name := _product_file(code)) is not None)


def _product_file(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    inside = path.is_relative_to(HOME) and path.relative_to(HOME).parts[0] in PRODUCT
    return path.relative_to(HOME).as_posix() if inside else None


def _run(scenario: Path, out: Path) -> None:
    Commands().main(["run", str(scenario), "--out", str(out)], standalone_mode=False)


if __name__ == "__main__":
    counted = modules_on_the_way()
    for module, functions in sorted(counted.items()):
        print(f"{functions:4d}  {module}")
    print(f"{len(counted)} modules, {counted.total()} functions")
