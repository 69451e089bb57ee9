"""FedNCF: a neural scoring function whose user part is private.

Perifanis, Efraimidis: "Federated Neural Collaborative Filtering", Knowledge-Based Systems 242,
2022, arXiv 2106.04405. The scoring function is NeuMF; a user's two vectors stay on their device,
the item table and the network are shared. Setting ``sends`` says how it is trained:

``change`` (preset ``paper``)
    As in the paper. A client trains its own copy of the network and of the item rows that it
    touches, together with its vectors, over minibatches for two epochs, and sends copy minus
    download. The server adds to each item row the mean change over the users who touched it (the
    paper's "MF averaging"; ``row-average=false``: over all users of the round) and to the network
    the mean change over all users. The paper's secure aggregation of the sums is not here.

    There is no official code. Adam, minibatches of 64, two epochs and four negatives are what a
    public re-implementation says to have from the paper; SGD would need a rate for each of vectors,
    rows and network, which start at different scales. The moments of Adam are fresh in every
    participation: those of the copies belong to weights that are thrown away, and the private
    vectors are stepped with them as one model. The rate of the preset, 0.01, was chosen on the
    validation items of ML-100K with a tenth of the users in a round: NDCG@10 among 99 is 0.271
    after 15 rounds, and 0.215, 0.216 and 0.270 with 0.001 (the re-implementation's), 0.003, 0.03.

``gradient`` (presets ``one-step`` and ``tuned``)
    As FedRecGEL's authors compare with it: `fedrecgel.common.algorithms.gradient`, one gradient for
    one step of the server; FedRecGEL with both radii 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.algorithms.delta import ChangeAlgorithm, ChangeConfig, Tuned
from fedrecgel.common.algorithms.gradient import GradientAlgorithm, GradientConfig
from fedrecgel.common.algorithms.view import ScorerView
from fedrecgel.common.config import Config, Scalar, kebab, setting
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import Keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Group, put, take
from fedrecgel.common.optimizers import LocalAdam
from fedrecgel.common.scorers import make_scorer
from fedrecgel.common.scorers.base import Block
from fedrecgel.common.state import State, Tensors, Update

CITATION = (
    "Perifanis, Efraimidis: Federated Neural Collaborative Filtering, Knowledge-Based Systems "
    "242, 2022, arXiv 2106.04405"
)
OF_CHANGE = ("local_epochs", "batch_size", "row_average")
"""Settings that ``sends=gradient`` makes no use of."""
OF_GRADIENT = (
    "loss",
    "unknown_weight",
    "private_optimizer",
    "private_steps",
    "private_weight_decay",
    "server_optimizer",
    "server_lr",
    "item_weight_decay",
    "average",
)
"""Settings that ``sends=change`` makes no use of."""


@dataclass(frozen=True, kw_only=True)
class FedNCFConfig(GradientConfig, ChangeConfig):
    """Settings of FedNCF; those of the other way of training are refused."""

    algorithm: ClassVar[str] = "fedncf"

    sends: str = setting(
        "gradient",
        "gradient: one step of the server in a round, as FedRecGEL compares; change: of weights "
        "trained over minibatches on the device (paper)",
        choices=("gradient", "change"),
    )
    local_lr: float = setting(
        0.1, "learning rate of the private Adam; sends=change: of the local one", low=0
    )
    local_epochs: int = setting(2, "sends=change: passes over a user's samples in a round", low=1)
    batch_size: int = setting(64, "sends=change: samples in a minibatch", low=1)
    row_average: bool = setting(
        True,
        "sends=change: average a row over the users who touched it (paper), not over all of the "
        "round",
    )

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Config.unused`."""
        return OF_GRADIENT if self.sends == "change" else OF_CHANGE

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [kebab(n) for n in self.unused if getattr(self, n) != getattr(type(self), n)]
        if given:
            preset = "paper" if self.sends == "change" else "one-step or tuned"
            raise ConfigError(
                f"fedncf with sends={self.sends} makes no use of {', '.join(given)}; leave it out, "
                f"and start from preset {preset}"
            )


class FedNCF(GradientAlgorithm[FedNCFConfig]):
    """`GradientAlgorithm` with plain gradients; `LocalFedNCF` where ``sends`` is ``change``."""

    name: ClassVar[str] = "fedncf"
    citation: ClassVar[str] = CITATION
    config_class: ClassVar[type[Config]] = FedNCFConfig

    @classmethod
    def variant(cls, config: Config) -> type[Algorithm[Any]]:
        """See `Algorithm.variant`."""
        return LocalFedNCF if getattr(config, "sends", "") == "change" else cls

    @classmethod
    def search_for(cls, config: Config) -> Mapping[str, tuple[Scalar, ...]]:
        """See `Algorithm.search_for`."""
        found = cls.variant(config)
        return found.search if found is LocalFedNCF else super().search_for(config)


class LocalFedNCF(ChangeAlgorithm[FedNCFConfig]):
    """Adam over minibatches on the device, one rate for all that is trained.

    Shared are ``items`` (M, D) and the scorer's network, with ``row-average`` also ``touched``
    (M, 1): how often a row was averaged. Private is ``user`` (P,).
    """

    name: ClassVar[str] = FedNCF.name
    citation: ClassVar[str] = CITATION
    config_class: ClassVar[type[Config]] = FedNCFConfig
    scored_with: ClassVar[str] = FedNCF.scored_with
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "local-lr": (0.003, 0.01, 0.03),
        "init-std": (0.01, 0.1),
        "local-epochs": (1, 2, 5),
        "row-average": (True, False),
    }

    def __init__(self, config: FedNCFConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.scorer = make_scorer(config.scorer, config.embedding_dim)
        self.network = tuple(self.scorer.network_shapes)
        rows = frozenset({"items"}) | self.counted
        self.tensors = Tensors(
            shared=rows | set(self.network), item_rows=rows, private=frozenset({"user"})
        )
        sizes = (torch.Size(shape).numel() for shape in self.scorer.network_shapes.values())
        self.rows_beside = -(-sum(sizes) // self.scorer.row_size)

    @property
    def rates(self) -> str:
        """See `ChangeAlgorithm.rates`."""
        return f"local-lr {self.config.local_lr:g}; lower it"

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`."""
        config = self.config
        items = self.scorer.init_items(self.num_items, config.seed, config.init_std)
        network = self.scorer.init_network(config.seed)
        return ServerState(self.cast({"items": items, **network, **self.no_counts}))

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`."""
        config = self.config
        return self.cast({"user": self.scorer.init_users(keys, config.seed, config.init_std)})

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """Rows as `ChangeAlgorithm.aggregate` has them, the network by the mean over the users."""
        super().aggregate(server, updates, round)
        for name in self.network:
            server.shared[name] += updates[-1].dense[name] / updates[-1].users

    def begin(self, shared: State, private: State) -> State:
        """See `ChangeAlgorithm.begin`: the vectors, and a copy of the network for each user."""
        users = len(private["user"])
        copies = {name: shared[name].expand(users, *shared[name].shape) for name in self.network}
        return {**private, **copies}

    def tune(self, group: Group, rows: Tensor, own: State, data: Interactions, round: int) -> Tuned:
        """See `ChangeAlgorithm.tune`."""
        trained = {name: value.clone() for name, value in own.items()}
        adam = LocalAdam((rows, *trained.values()), self.config.local_lr)
        losses = rows.new_zeros(len(rows))
        for block in group.blocks():
            found, gradients = self.gradients(block, rows, trained)
            losses += found
            adam.step(gradients, block.total.sum(-1) > 0)
        user = trained.pop("user")
        change = {name: (value - own[name]).sum(0) for name, value in trained.items()}
        return Tuned({"user": user}, losses / group.steps, change)

    def gradients(self, block: Block, rows: Tensor, own: State) -> tuple[Tensor, list[Tensor]]:
        """Losses (U,) of a minibatch, gradients by the local rows and by all that is ``own``."""
        with torch.enable_grad():
            some, *values = [
                value.detach().requires_grad_() for value in (take(rows, block), *own.values())
            ]
            state = dict(zip(own, values, strict=True))
            losses = block.losses(self.scorer.score(some, state, state["user"]))
            by_rows, *others = torch.autograd.grad(losses.sum(), (some, *values))
        whole = torch.zeros_like(rows)
        put(whole, block, by_rows)
        return losses.detach(), [whole, *others]

    def personal_view(self, download: Download, private: State) -> ScorerView:
        """See `Algorithm.personal_view`."""
        return ScorerView(self.scorer, download.shared, private["user"])

    @torch.no_grad()
    def prepared(self, shared: State) -> State:
        """See `Algorithm.prepared`."""
        return {**shared, **self.scorer.prepared(shared["items"], shared)}
