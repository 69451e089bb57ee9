"""FedRecGEL: sharpness-aware gradients, one radius for the shared and one for the private group.

Yu, Feng, Li, Zhang, Wang, Chen: "Sharpness-Aware Minimization for Generalized Embedding Learning in
Federated Recommendation", WWW 2026, arXiv 2603.11503.

One client's round: gradients at (shared, private); the shared SAM gradient at (shared + e_shared,
private), the private one at (shared, private + e_private), where e = rho * g / |g| with one norm
over the whole group. The private vector takes a step of Adam; the shared SAM gradient is sent.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrecgel.common.algorithms.gradient import GradientAlgorithm, GradientConfig
from fedrecgel.common.config import Config, setting
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.scorers.base import Block
from fedrecgel.common.sharpness import ascend
from fedrecgel.common.state import State


@dataclass(frozen=True, kw_only=True)
class FedRecGELConfig(GradientConfig):
    """Settings of FedRecGEL."""

    algorithm: ClassVar[str] = "fedrecgel"

    rho_shared: float = setting(
        0.02, "radius of the shared group (paper: rho_co); 0 = plain gradient", low=0
    )
    rho_private: float = setting(
        0.02, "radius of the private group (paper: rho_ur); 0 = plain gradient", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.private_optimizer == "newton" and self.rho_private > 0:
            # At the minimum the gradient is rounding, and its direction noise.
            raise ConfigError(
                "private-optimizer newton ends where the private gradient is 0 and has no "
                "direction; set rho-private=0, or private-optimizer=adam"
            )


class FedRecGEL(GradientAlgorithm[FedRecGELConfig]):
    """`GradientAlgorithm` with sharpness-aware gradients in both groups."""

    name: ClassVar[str] = "fedrecgel"
    citation: ClassVar[str] = (
        "Yu, Feng, Li, Zhang, Wang, Chen: Sharpness-Aware Minimization for Generalized Embedding "
        "Learning in Federated Recommendation, WWW 2026, arXiv 2603.11503"
    )
    config_class: ClassVar[type[Config]] = FedRecGELConfig

    @property
    def radii(self) -> tuple[float, float]:
        """``(rho_shared, rho_private)``."""
        return self.config.rho_shared, self.config.rho_private

    def gradients(self, block: Block, shared: State, user: Tensor) -> tuple[State, Tensor, Tensor]:
        """Both SAM gradients, taken from the same point."""
        rho_shared, rho_private = self.radii
        shared_gradient, user_gradient, loss = super().gradients(block, shared, user)
        if rho_shared > 0:
            names = list(shared)
            steps = ascend(
                [shared[n] for n in names], [shared_gradient[n] for n in names], rho_shared
            )
            moved = dict(zip(names, steps, strict=True))
            result = super().gradients(block, moved, user)[0]
        else:
            result = shared_gradient
        if rho_private > 0:
            moved_user = ascend([user], [user_gradient], rho_private)[0]
            user_gradient = super().private_gradient(block, shared, moved_user)
        return result, user_gradient, loss

    def private_gradient(self, block: Block, shared: State, user: Tensor) -> Tensor:
        """The private SAM gradient."""
        gradient = super().private_gradient(block, shared, user)
        if self.config.rho_private > 0:
            moved = ascend([user], [gradient], self.config.rho_private)[0]
            gradient = super().private_gradient(block, shared, moved)
        return gradient
