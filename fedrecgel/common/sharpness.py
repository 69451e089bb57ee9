"""The ascent step of sharpness-aware minimisation, for one group of parameters.

Foret, Kleiner, Mobahi, Neyshabur: "Sharpness-Aware Minimization for Efficiently Improving
Generalization", ICLR 2021, arXiv 2010.01412, equation 2. FedRecGEL takes it twice, once over the
shared and once over the private group, each with a radius of its own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def ascent_scale(squared_norm: Tensor, rho: float) -> Tensor:
    """``rho / norm``, and 0 where the norm is 0: a zero gradient gives a zero perturbation.

    Parameters
    ----------
    squared_norm : any shape
        Squared L2 norm of the gradient over the whole group.
    """
    norm = squared_norm.sqrt()
    return torch.where(norm > 0, rho / norm, torch.zeros_like(norm))


def ascend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rho: float) -> list[Tensor]:
    """Parameters moved by ``rho`` along their gradient, with one norm over the group.

    Returns new tensors; the caller keeps the old ones, so nothing has to be undone by subtraction.
    """
    squared = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    scale = ascent_scale(squared, rho)
    return [value + scale * gradient for value, gradient in zip(parameters, gradients, strict=True)]
