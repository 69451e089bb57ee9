"""Speed of NeuMF's block computation alone: no sampling, no messages, no server.

One thread, both radii on, on made cohorts with the sizes of two published data sets. Beside it the
plain autograd loop, one user at a time, and the share of this machine's matrix-product rate,
counting the operations of the mathematics alone. Run as ``python benchmarks/kernels.py``.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.blocks import cut_blocks
from fedrecgel.common.samples import Samples
from fedrecgel.common.scorers.base import Block
from fedrecgel.common.scorers.neumf import NeuMFScorer
from fedrecgel.common.sharpness import ascend
from fedrecgel.common.state import State

RADIUS = 0.05
MULTIPLY_ADDS = 27_000
"""Of one sample in one forward pass, the first layer's user half being computed once per user."""
PASSES = 3 + 3 + 2
"""Products as large as a forward pass; only the last of three passes needs no weight gradients."""


@dataclass(frozen=True)
class Shape:
    """A cohort: ``mean`` samples a user, log-normal with deviation ``spread``, up to 1,000."""

    name: str
    users: int
    items: int
    mean: float
    spread: float

    def counts(self, draw: np.random.Generator) -> NDArray[np.int64]:
        """Drawn samples of each user, with exactly the wanted mean up to rounding."""
        drawn = draw.lognormal(0.0, self.spread, self.users)
        for _ in range(20):
            drawn = np.clip(drawn * self.mean / drawn.mean(), 5, 1000)
        return drawn.round().astype(np.int64)


SHAPES = (
    Shape("FilmTrust", users=150, items=2071, mean=112, spread=0.9),
    Shape("Amazon-Video", users=800, items=11830, mean=35, spread=0.5),
)


def make_samples(shape: Shape, seed: int) -> Samples:
    """One sample in five is a positive; popular items are drawn more often, so that some merge."""
    draw = np.random.default_rng(seed)
    items, positive, total, offsets = [], [], [], [0]
    for count in shape.counts(draw):
        popular = shape.items * draw.random(count // 5) ** 3
        drawn = np.concatenate((popular, shape.items * draw.random(count - count // 5)))
        own, place = np.unique(drawn.astype(np.int64), return_inverse=True)
        items.append(own)
        total.append(np.bincount(place) / count)
        positive.append(np.bincount(place[: count // 5], minlength=len(own)) / count)
        offsets.append(offsets[-1] + len(own))
    return Samples(
        np.concatenate(items), np.concatenate(positive), np.concatenate(total), np.array(offsets)
    )


def sam_loop(
    scorer: NeuMFScorer, table: Tensor, network: State, users: Tensor, samples: Samples
) -> None:
    """The same gradients by autograd, user by user."""
    for u, (start, stop) in enumerate(zip(samples.offsets[:-1], samples.offsets[1:], strict=True)):
        index, positive, total = (
            torch.from_numpy(part[start:stop])
            for part in (samples.items, samples.positive, samples.total)
        )
        block = Block(index, positive.to(table.dtype), total.to(table.dtype))
        start_point = [table[index], *network.values(), users[u]]
        gradients = _gradients(scorer, block, network, start_point, len(start_point))
        shared = ascend(start_point[:-1], gradients[:-1], RADIUS)
        private = ascend(start_point[-1:], gradients[-1:], RADIUS)
        _gradients(scorer, block, network, [*shared, users[u]], len(shared))
        _gradients(scorer, block, network, [*private, *start_point[:-1]], 1, first_is_user=True)


def _gradients(
    scorer: NeuMFScorer,
    block: Block,
    network: State,
    values: Sequence[Tensor],
    wanted: int,
    *,
    first_is_user: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients by the first ``wanted`` of ``[rows, *network, user]``, or by the user in front."""
    leaves = [value.detach().requires_grad_(i < wanted) for i, value in enumerate(values)]
    rows, *rest = (*leaves[1:], leaves[0]) if first_is_user else leaves
    state = dict(zip(network, rest[:-1], strict=True))
    loss = block.losses(scorer.score(rows, state, rest[-1]))
    return torch.autograd.grad(loss, leaves[:wanted])


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Smallest of ``repeats`` measurements, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def gemm_rate(repeats: int) -> float:
    """Operations per second of one large square matrix product."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds(lambda: left @ right, repeats)


def measure(shape: Shape, block_samples: Sequence[int], repeats: int, loop_users: int) -> None:
    """Print one line for the loop and one for each block size."""
    scorer = NeuMFScorer(32)
    draw = torch.Generator().manual_seed(0)
    table = 0.1 * torch.randn(shape.items, scorer.row_size, generator=draw)
    users = 0.1 * torch.randn(shape.users, scorer.user_size, generator=draw)
    network = {name: value.float() for name, value in scorer.init_network(0).items()}
    kernel = scorer.kernel(network)
    samples = make_samples(shape, seed=0)
    useful = 2 * MULTIPLY_ADDS * PASSES * shape.mean
    print(f"{shape.name}: {shape.users} users, {len(samples.items) / shape.users:.1f} rows a user")

    few = Samples(samples.items, samples.positive, samples.total, samples.offsets[: loop_users + 1])
    rows_each = few.offsets[-1] / loop_users * shape.users / samples.offsets[-1]
    taken = seconds(lambda: sam_loop(scorer, table, network, users, few), max(1, repeats // 5))
    print(
        f"  loop                 {loop_users / taken:8.0f} users/s"
        f"  (users with {rows_each:.2f} of the mean)"
    )
    for size in block_samples:
        blocks = [
            (table[block.index], users[torch.from_numpy(chosen)], block)
            for chosen, _, block in cut_blocks(samples, size, torch.float32, torch.device("cpu"))
        ]
        padded = sum(block.index.numel() for *_, block in blocks) / len(samples.items)

        def work(blocks: list[tuple[Tensor, Tensor, Block]] = blocks) -> None:
            for rows, own, block in blocks:
                kernel.sam_gradients(block, rows, own, RADIUS, RADIUS)

        taken = seconds(work, repeats)
        share = useful * shape.users / taken / gemm_rate(repeats)
        print(
            f"  blocks of {size:6,d}     {shape.users / taken:8.0f} users/s"
            f"  {share:4.0%} of the matrix-product rate, padding {padded - 1:.0%}"
        )


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--block-samples", type=int, nargs="+", default=[512, 1024, 1536, 2048, 4096, 8192]
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--loop-users", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one thread, torch {torch.__version__}, {gemm_rate(10) / 1e9:.0f} GFLOP/s in float32")
    for shape in SHAPES:
        measure(shape, arguments.block_samples, arguments.repeats, arguments.loop_users)


if __name__ == "__main__":
    main()
