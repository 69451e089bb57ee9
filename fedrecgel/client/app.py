"""The Flower ClientApp: messages in, messages out; everything else is in the modules beside it.

``node-config`` names the node's own file of interactions, its name and its state folder
(`fedrecgel.client.own_data`); or it (or ``run-config``) names a prepared data set, the folder for
private state and the share of the users (`fedrecgel.client.site.open_site`).
"""

import functools
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedrecgel.client.evaluator import evaluate
from fedrecgel.client.own_data import open_own_data
from fedrecgel.client.site import Site, algorithm_of, open_site
from fedrecgel.client.stock import evaluate_stock, is_stock, train_stock
from fedrecgel.client.trainer import train
from fedrecgel.common.errors import FedRecError
from fedrecgel.common.greeting import Query
from fedrecgel.common.records import (
    pack_metrics,
    pack_train_reply,
    unpack_evaluate_request,
    unpack_train_request,
)
from fedrecgel.common.requests import Experiment

app = ClientApp()

TORCH = str(Path(torch.__file__).parent)
Handler = Callable[[Message, Context], Message]
RAISED = 2
"""Flower's code for an app that raised an exception."""


def answered(handler: Handler) -> Handler:
    """Answer what goes wrong: one line for what a person can mend, a traceback for a defect.

    Flower would report only the exception's text, and print it for every message.
    """

    @functools.wraps(handler)
    def answer(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except FedRecError as error:
            reason = str(error)
        except Exception as error:
            # A server shows the last line alone, so that has to say where it was, and not in torch.
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if not frame.filename.startswith(TORCH)]
            at = (own or frames)[-1]
            where = f"{Path(at.filename).name}, line {at.lineno}, in {at.name}"
            told = f"{type(error).__name__}: {error}".splitlines()[0]
            reason = f"{traceback.format_exc()}{told} ({where})"
        return Message(Error(RAISED, reason), reply_to=message)

    return answer


@app.query()
@answered
def on_query(message: Message, context: Context) -> Message:
    """Say which site this is and how many users it hosts."""
    site = _site(context, Query.unpack(message.content))
    return Message(site.hello().pack(), reply_to=message)


@app.train()
@answered
def on_train(message: Message, context: Context) -> Message:
    """Train some of the users; reply with the sum of their shared gradients."""
    if is_stock(message):
        return Message(train_stock(message, context, _site(context)), reply_to=message)
    request = unpack_train_request(message.content)
    site = _site(context, request.experiment)
    reply = train(site, request)
    tensors = algorithm_of(request, site).tensors
    return Message(pack_train_reply(reply, tensors), reply_to=message)


@app.evaluate()
@answered
def on_evaluate(message: Message, context: Context) -> Message:
    """Evaluate all users; reply with sums of metrics."""
    if is_stock(message):
        return Message(evaluate_stock(message, context, _site(context)), reply_to=message)
    request = unpack_evaluate_request(message.content)
    sums = evaluate(_site(context, request.experiment), request)
    return Message(pack_metrics(sums), reply_to=message)


def _site(context: Context, asked: Query | Experiment | None = None) -> Site:
    node = {key: value for key, value in context.node_config.items() if value != ""}
    if "data" not in node and node.keys() & {"site", "interactions"}:
        return open_own_data(node, asked)
    return open_site(node, dict(context.run_config))
