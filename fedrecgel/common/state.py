"""State as named tensors, and the reduced update that leaves a node.

A `State` maps names to tensors. What a name may do is declared once per algorithm by `Tensors`:
shared tensors travel both ways, private ones never leave their node unless the algorithm says so,
addressed ones travel from the server to particular users only. Everything else is refused (default
deny).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.errors import ConfigError

State = dict[str, Tensor]
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_device(name: str) -> torch.device:
    """``cpu``, ``cuda[:n]`` or ``auto`` (CUDA if there is one) as a torch device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name != "cpu" and not name.startswith("cuda"):
        raise ConfigError(f"setting 'device' cannot be '{name}'; choose from cpu, cuda, auto")
    if name != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device '{name}' asked for, but torch sees no GPU; use cpu or auto")
    return torch.device(name)


@dataclass(frozen=True)
class Tensors:
    """Which tensors an algorithm has, by what may happen to them.

    Attributes
    ----------
    shared
        Sent by the server to every node.
    item_rows
        Those that an update may have whose first axis is the catalogue: it holds the touched rows
        only.
    private
        Kept on the node, one slice per user; never in a message.
    addressed
        Sent by the server to the users they belong to.
    announced
        Those of ``shared`` that no update has: they only travel down.
    uploaded
        Those of ``private`` that an update has as well: they leave the device. Only for algorithms
        that need each user's own update, and a weakness that the declaration makes plain.

    Raises
    ------
    ConfigError
        When a tensor is declared for two uses that exclude each other.
    """

    shared: frozenset[str]
    item_rows: frozenset[str]
    private: frozenset[str]
    addressed: frozenset[str] = frozenset()
    announced: frozenset[str] = frozenset()
    uploaded: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for use in fields(self):
            names = getattr(self, use.name)
            if isinstance(names, str):
                raise ConfigError(f"tensors declared {use.name} are a set of names, not '{names}'")
            object.__setattr__(self, use.name, frozenset(names))
        for first, second in combinations(("shared", "private", "addressed"), 2):
            both = getattr(self, first) & getattr(self, second)
            if both:
                raise ConfigError(f"tensor '{min(both)}' is declared {first} and {second}")
        for part, whole in (("announced", "shared"), ("uploaded", "private")):
            others = getattr(self, part) - getattr(self, whole)
            if others:
                raise ConfigError(f"tensor '{min(others)}' is declared {part} but not {whole}")

    @property
    def sent(self) -> frozenset[str]:
        """What an update has: all of these and nothing else."""
        return (self.shared - self.announced) | self.uploaded


@dataclass
class Update:
    """Sum of the updates of ``users`` users.

    Attributes
    ----------
    rows : name -> (index (R,) int64 sorted and distinct, values (R, ...))
        Sums over the touched rows of tensors in `Tensors.item_rows`.
    dense : name -> values
        Sums of the other shared tensors.
    users : int
        How many users are in the sums.
    loss : float
        Sum over these users of the training loss before the step.
    touched : int
        Sum over these users of the item rows each touched: what one-user nodes would send.
    """

    rows: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    dense: State = field(default_factory=dict)
    users: int = 0
    loss: float = 0.0
    touched: int = 0

    @classmethod
    def total(cls, updates: "Sequence[Update]") -> "Update":
        """Sum of several updates: rows add where they meet and join where they do not."""
        if len(updates) == 1:
            return updates[0]
        result = cls(
            users=sum(update.users for update in updates),
            loss=math.fsum(update.loss for update in updates),
            touched=sum(update.touched for update in updates),
        )
        for name in {name: None for update in updates for name in update.rows}:
            parts = [update.rows[name] for update in updates if name in update.rows]
            index, place = torch.unique(torch.cat([part[0] for part in parts]), return_inverse=True)
            values = parts[0][1].new_zeros((len(index), *parts[0][1].shape[1:]))
            values.index_add_(0, place, torch.cat([part[1] for part in parts]))
            result.rows[name] = (index, values)
        for name in {name: None for update in updates for name in update.dense}:
            dense = [update.dense[name] for update in updates if name in update.dense]
            result.dense[name] = torch.stack(dense).sum(0)
        return result

    def dense_rows(self, num_items: int) -> "Update":
        """The same with all rows, zeros where none was touched; and it counts as if all were."""
        rows = {}
        for name, (index, values) in self.rows.items():
            table = values.new_zeros((num_items, *values.shape[1:]))
            table[index] = values
            rows[name] = (torch.arange(num_items), table)
        return replace(self, rows=rows, touched=self.users * num_items)


def size_of(value: Tensor) -> int:
    """Bytes of a tensor."""
    return value.numel() * value.element_size()


def stack_users(states: list[State]) -> State:
    """One state with a leading user axis from one state per user."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def take_users(state: State, users: Tensor) -> State:
    """Slices of a state with a leading user axis."""
    return {name: value[users] for name, value in state.items()}


def move(state: State, device: torch.device) -> State:
    """The state on a device; tensors that are there already are not copied."""
    return {name: value.to(device) for name, value in state.items()}


class _Unlocked:
    """Presents a read-only array as writable, so that torch takes it without a copy."""

    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self._keep_alive = array


def to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """A tensor over the memory of ``array`` (moved if the device needs it); never write into it.

    torch has no read-only tensors and would warn or copy; messages are megabytes and are only read.
    """
    if not array.flags.writeable:
        array = np.asarray(_Unlocked(array))
    return torch.from_numpy(array).to(device)
