"""Speed of NeuMF's block computation alone: no sampling, no messages, no server.

One thread and its CPU seconds, both radii on, on made cohorts with the sizes of two published data
sets. Beside it the plain autograd loop, one user at a time, and the share of this machine's
matrix-product rate, counting the operations of the mathematics alone.
Run as ``python -m benchmarks.kernels``.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.blocks import cut_blocks
from fedrecgel.common.samples import Samples
from fedrecgel.common.scorers.base import Block, Kernel
from fedrecgel.common.scorers.neumf import NeuMFScorer
from fedrecgel.common.sharpness import ascend
from fedrecgel.common.state import State

RADIUS = 0.05
MULTIPLY_ADDS = 27_000
"""Of one drawn sample in one forward pass, with the first layer's user half once per user."""
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
        point = [table[index], *network.values(), users[u]]
        last = len(point) - 1
        plain = _gradients(scorer, block, network, point, range(last + 1))
        shared = ascend(point[:last], plain[:last], RADIUS)
        private = ascend(point[last:], plain[last:], RADIUS)
        _gradients(scorer, block, network, [*shared, *point[last:]], range(last))
        _gradients(scorer, block, network, [*point[:last], *private], range(last, last + 1))


def _gradients(
    scorer: NeuMFScorer, block: Block, names: Iterable[str], point: Sequence[Tensor], wanted: range
) -> tuple[Tensor, ...]:
    """Gradients by those of ``[rows, *network, user]`` whose position is wanted."""
    leaves = [value.detach().requires_grad_(i in wanted) for i, value in enumerate(point)]
    rows, *network, user = leaves
    state = dict(zip(names, network, strict=True))
    loss = block.losses(scorer.score(rows, state, user))
    return torch.autograd.grad(loss, [leaves[i] for i in wanted])


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Fewest CPU seconds of ``repeats`` measurements, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.thread_time()
        work()
        best = min(best, time.thread_time() - start)
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
    samples = make_samples(shape, seed=0)
    rows = len(samples.items)
    print(f"{shape.name}: {shape.users} users, {rows / shape.users:.1f} distinct rows a user")

    few = Samples(samples.items, samples.positive, samples.total, samples.offsets[: loop_users + 1])
    taken = seconds(lambda: sam_loop(scorer, table, network, users, few), max(1, repeats // 5))
    size_ratio = few.offsets[-1] / loop_users * shape.users / rows
    print(
        f"  autograd loop {loop_users / taken:6.0f} users/s on users of {size_ratio:.2f} the mean"
    )

    kernel, rate = scorer.kernel(network), gemm_rate(repeats)
    for size in block_samples:
        blocks = [
            (block, table[block.index], users[torch.from_numpy(chosen)])
            for chosen, _, block in cut_blocks(samples, size, torch.float32, torch.device("cpu"))
        ]
        taken = seconds(partial(run_blocks, kernel, blocks), repeats)
        # The machine's rate varies with its other load: never count a slow moment in our favour.
        rate = max(rate, gemm_rate(repeats))
        useful = 2 * MULTIPLY_ADDS * PASSES * shape.mean * shape.users / taken
        padding = sum(block.index.numel() for block, *_ in blocks) / rows - 1
        print(
            f"  blocks of {size:5d} {shape.users / taken:5.0f} users/s, {useful / rate:4.0%} of"
            f" {rate / 1e9:.0f} GFLOP/s, padding {padding:.0%}"
        )


def run_blocks(kernel: Kernel, blocks: Sequence[tuple[Block, Tensor, Tensor]]) -> None:
    """Both SAM gradients of all blocks."""
    for block, rows, users in blocks:
        kernel.sam_gradients(block, rows, users, RADIUS, RADIUS)


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
    print(f"one thread, float32, torch {torch.__version__}")
    for shape in SHAPES:
        measure(shape, arguments.block_samples, arguments.repeats, arguments.loop_users)


if __name__ == "__main__":
    main()
