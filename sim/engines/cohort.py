"""The engine ``cohort``: all sites of a contact train as one batched computation, here and without a message."""

from collections.abc import Sequence

from fedsmall.plan import Plan
from fedsmall.sim.engines.allocator import keep_freed_memory
from fedsmall.strategies.server.run_loop import Evaluator, Outcome, Progress, Stop, run_rounds
from fedsmall.training.trainer import Trainer
from fedsmall.travel.moments import Initial, Watcher


def run_cohort(
    plan: Plan,
    trainer: Trainer,
    initial: Initial,
    evaluator: Evaluator | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
    watchers: Sequence[Watcher] = (),
) -> Outcome:
    """Run a plan over the sites of ``trainer``; ``initial`` gives each site its own model, or all one under None."""
    keep_freed_memory()
    return run_rounds(plan, trainer, initial, evaluator=evaluator, progress=progress, stop=stop, watchers=watchers)
