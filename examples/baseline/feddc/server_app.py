"""The server: FedDC, daisy-chaining alone, or averages every b steps; the global model is judged on the test set."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy

from feddc.dataset import load_test
from feddc.model import make_model
from fedsmall.strategies import DaisyChain
from fedsmall.travel.schedule import Schedule

app = ServerApp()


def make_schedule(settings: dict) -> tuple[Schedule, int]:
    """The schedule of an ``algorithm``, in local steps, and how many of them a client takes from message to message."""
    d, b = settings["permute-every"], settings["aggregate-every"]
    schedules = {"feddc": (Schedule(d, b), d), "daisychain": (Schedule(d, None), d), "fedavg": (Schedule(None, b), b)}
    if settings["algorithm"] not in schedules:
        raise ValueError(f"algorithm is one of {', '.join(schedules)}, not {settings['algorithm']!r}")
    if b % d:
        raise ValueError(f"aggregate-every is a multiple of permute-every here; got {b} and {d}")
    return schedules[settings["algorithm"]]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds and print the accuracy of every global model that is judged."""
    settings = context.run_config
    schedule, steps = make_schedule(settings)
    rounds = settings["num-steps"] // steps
    test, model = load_test(settings["data"]), make_model(settings["model"], settings["seed"])

    def judge(t: int, arrays: ArrayRecord) -> MetricRecord | None:
        if t not in (0, rounds) and (schedule.aggregate_every is None or t * steps % settings["evaluate-every"]):
            return None
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in test.x.split(500)])
        accuracy = (outputs.argmax(1) == test.y).float().mean().item()
        return MetricRecord({"accuracy": accuracy, "loss": cross_entropy(outputs, test.y).item()})

    nodes = settings["num-clients"]
    averages = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    result = DaisyChain(averages, schedule, seed=settings["seed"]).start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({**settings, "steps": steps}),
        evaluate_fn=judge,
    )
    for t, metrics in sorted(result.evaluate_metrics_serverapp.items()):
        print(f"step {t * steps}: accuracy {metrics['accuracy']:.4f}, loss {metrics['loss']:.4f}")
