"""The server's view of who takes part: users by number, and what it accepted of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import FederationError
from fedrecgel.common.greeting import Hello
from fedrecgel.common.hashing import uniform_cohort
from fedrecgel.common.interactions import Ints
from fedrecgel.common.requests import NEVER


@dataclass(frozen=True)
class Member:
    """One node: its Flower id, its name, and the numbers of its users, ``first .. last - 1``."""

    node_id: int
    site: str
    first: int
    last: int


class Roster:
    """All users of the federation, numbered in the order of (site, slot).

    The numbering does not depend on Flower's node ids, which are random, nor on the order in which
    nodes answer.

    Attributes
    ----------
    members : list of Member
        Sorted by site.
    accepted : (N,) int64
        The last round whose update was accepted, for each user; 0 = none.
    """

    def __init__(self, hellos: dict[int, Hello], catalogue: Catalogue | None = None) -> None:
        self._check(hellos, catalogue.hash if catalogue else "")
        self.members: list[Member] = []
        first = 0
        for node_id, hello in sorted(hellos.items(), key=lambda pair: pair[1].site):
            self.members.append(Member(node_id, hello.site, first, first + hello.users))
            first += hello.users
        self.num_users = first
        self.num_items = next(iter(hellos.values())).num_items
        self.catalogue = next(iter(hellos.values())).catalogue
        self.validation_users = sum(hello.validation_users for hello in hellos.values())
        self.accepted: Ints = np.full(first, NEVER, dtype=np.int64)

    def cohort(
        self,
        seed: int,
        round: int,
        fraction: float,
        attempt: int = 0,
        choose: Callable[[Ints, int], Ints] | None = None,
    ) -> Ints:
        """Numbers of the users chosen in a round, ascending: a function of seed and round alone.

        ``choose`` (`Algorithm.cohort`) has the users who can take part, and how many are wanted.
        """
        size = max(1, round_half_up(fraction * self.num_users))
        users = np.arange(self.num_users)
        return choose(users, size) if choose else uniform_cohort(users, size, seed, round, attempt)

    def split(self, users: Ints) -> list[tuple[Member, Ints]]:
        """Users (ascending numbers) by the node that hosts them; nodes without any are left out."""
        bounds = np.searchsorted(
            users, [member.first for member in self.members] + [self.num_users]
        )
        parts = zip(self.members, bounds[:-1], bounds[1:], strict=True)
        return [(member, users[a:b]) for member, a, b in parts if b > a]

    @staticmethod
    def _check(hellos: dict[int, Hello], catalogue: str) -> None:
        if sum(hello.users for hello in hellos.values()) == 0:
            raise FederationError(
                "no node hosts a user with training interactions; check their data"
            )
        other = [hello.site for hello in hellos.values() if hello.catalogue != catalogue]
        if catalogue and other:
            raise FederationError(
                f"site '{sorted(other)[0]}' does not use the catalogue that the server sends; give "
                "the node a file of its own (interactions=FILE) in place of prepared data"
            )
        names = [hello.site for hello in hellos.values()]
        twice = (
            {name for name in names if names.count(name) > 1}
            if len(set(names)) < len(names)
            else ()
        )
        if twice:
            raise FederationError(
                f"two nodes call themselves '{sorted(twice)[0]}'; give each site its own name"
            )
        prints: dict[str, str] = {}
        for hello in sorted(hellos.values(), key=lambda hello: hello.site):
            first = prints.setdefault(hello.fingerprint or hello.site, hello.site)
            if first != hello.site:
                raise FederationError(
                    f"sites '{first}' and '{hello.site}' have the very same data: their users "
                    "would count twice; give each its own file"
                )
        parts = sorted({hello.parts for hello in hellos.values()})
        if len(parts) > 1:
            raise FederationError(
                f"nodes say num-partitions={parts[0]} and {parts[-1]}: some would host the same "
                "users; give all of them the same number"
            )
        catalogues = {(hello.catalogue, hello.num_items) for hello in hellos.values()}
        if len(catalogues) > 1:
            raise FederationError(
                f"the nodes refer to {len(catalogues)} different catalogues; "
                "prepare all sites from one"
            )


def round_half_up(value: float) -> int:
    """Nearest whole number, halves up (Python's own rounds halves to even)."""
    return int(np.floor(value + 0.5))
