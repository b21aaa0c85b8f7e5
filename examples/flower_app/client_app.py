"""A hospital: plain PyTorch on its own twenty patients. It works with any strategy and knows of no daisy chain."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_breast_cancer
from torch.nn.functional import cross_entropy

PATIENTS = 20

app = ClientApp()


def load_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """This hospital's share of the breast cancer data, in an order that is the same at every call."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    share = np.random.default_rng(0).permutation(len(y))[context.node_config["partition-id"] :: number_of(context)]
    return torch.tensor(x[share], dtype=torch.float32), torch.tensor(y[share])


def number_of(context: Context) -> int:
    return int(context.node_config["num-partitions"])


def load_model(message: Message) -> torch.nn.Module:
    model = torch.nn.Linear(30, 2)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y = (values[:PATIENTS] for values in load_data(context))
    model, config = load_model(message), message.content["config"]
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(config["epochs"]):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = (values[PATIENTS:] for values in load_data(context))
    with torch.no_grad():
        outputs = load_model(message)(x)
    told = {"eval_loss": cross_entropy(outputs, y).item(), "eval_acc": (outputs.argmax(1) == y).float().mean().item()}
    return Message(RecordDict({"metrics": MetricRecord({**told, "num-examples": len(y)})}), reply_to=message)
