"""FedNCF, trained as FedRecGEL trains it: both radii 0.

Perifanis, Efraimidis: "Federated Neural Collaborative Filtering", Knowledge-Based Systems 242,
2022, arXiv 2106.04405. In the comparison of FedRecGEL (arXiv 2603.11503) FedNCF is the same network
and the same exchange without sharpness-awareness: `fedrecgel.common.algorithms.gradient`.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedrecgel.common.algorithms.gradient import GradientAlgorithm, GradientConfig
from fedrecgel.common.config import Config


@dataclass(frozen=True, kw_only=True)
class FedNCFConfig(GradientConfig):
    """Settings of FedNCF."""

    algorithm: ClassVar[str] = "fedncf"


class FedNCF(GradientAlgorithm[FedNCFConfig]):
    """`GradientAlgorithm` with plain gradients."""

    name: ClassVar[str] = "fedncf"
    citation: ClassVar[str] = (
        "Perifanis, Efraimidis: Federated Neural Collaborative Filtering, Knowledge-Based Systems "
        "242, 2022, arXiv 2106.04405"
    )
    config_class: ClassVar[type[Config]] = FedNCFConfig
