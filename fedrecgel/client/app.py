"""The Flower ClientApp: messages in, messages out; everything else is in the modules beside it.

``node-config`` (or ``run-config``) names the data set, the folder for private state and the share
of the users (`fedrecgel.client.site.open_site`).
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedrecgel.client.evaluator import evaluate
from fedrecgel.client.site import Site, algorithm_of, open_site
from fedrecgel.client.trainer import train
from fedrecgel.common.records import (
    pack_metrics,
    pack_train_reply,
    unpack_evaluate_request,
    unpack_train_request,
)

app = ClientApp()


@app.query()
def on_query(message: Message, context: Context) -> Message:
    """Say which site this is and how many users it hosts."""
    return Message(_site(context).hello().pack(), reply_to=message)


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """Train some of the users; reply with the sum of their shared gradients."""
    site, request = _site(context), unpack_train_request(message.content)
    reply = train(site, request)
    tensors = algorithm_of(request, site).tensors
    return Message(pack_train_reply(reply, tensors), reply_to=message)


@app.evaluate()
def on_evaluate(message: Message, context: Context) -> Message:
    """Evaluate all users; reply with sums of metrics."""
    sums = evaluate(_site(context), unpack_evaluate_request(message.content))
    return Message(pack_metrics(sums), reply_to=message)


def _site(context: Context) -> Site:
    return open_site(dict(context.node_config), dict(context.run_config))
