"""A client: SGD on batches of its own few images. It works with any strategy and knows of no daisy chain."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from feddc.dataset import load_client
from feddc.model import make_model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take as many steps as the server says from the model that came, and send it back."""
    torch.set_num_threads(1)  # many clients share a machine
    settings, client = message.content["config"], int(context.node_config["partition-id"])
    images = load_client(settings["data"], client, settings["samples-per-client"], settings["seed"])
    model = make_model(settings["model"], settings["seed"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters())
    model.train()
    first = (int(settings["server-round"]) - 1) * settings["steps"]
    for step in range(first, first + settings["steps"]):
        optimizer.param_groups[0]["lr"] = settings["learning-rate"] * 0.5 ** (step // settings["decay-every"])
        order = np.random.default_rng([settings["seed"], client, step]).permutation(len(images.y))
        drawn = order[: settings["batch-size"]]
        optimizer.zero_grad()
        loss = cross_entropy(model(images.x[drawn]), images.y[drawn])
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(images.y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
