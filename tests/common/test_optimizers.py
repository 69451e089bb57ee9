"""Adam of users side by side is torch's Adam of each alone."""

import torch

from fedrecgel.common.optimizers import LocalAdam

LR = 0.1


def alone(start: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    value = start.clone()
    adam = torch.optim.Adam([value], LR)
    for gradient in gradients:
        value.grad = gradient.clone()
        adam.step()
    return value


def test_who_sits_out_a_step_is_left_as_it_is_moments_and_count_included() -> None:
    start = torch.arange(12.0, dtype=torch.float64).view(2, 2, 3)
    vectors = start[:, 0].clone()
    # Transposed in memory, as autograd has the gradient of a weight that was multiplied by.
    steps = [torch.linspace(-k, k + 1, 12).double().view(2, 3, 2).mT for k in (1, 2, 3)]
    assert not steps[0].is_contiguous()
    found, own = start.clone(), vectors.clone()
    adam = LocalAdam((found, own), LR)
    for gradient, second in zip(steps, (True, False, True), strict=True):
        adam.step((gradient, gradient[:, 0]), torch.tensor([True, second]))
    for user, taken in enumerate((steps, [steps[0], steps[2]])):
        expected = alone(start[user], [gradient[user] for gradient in taken])
        torch.testing.assert_close(found[user], expected, rtol=0, atol=1e-12)
        expected = alone(vectors[user], [gradient[user, 0] for gradient in taken])
        torch.testing.assert_close(own[user], expected, rtol=0, atol=1e-12)
