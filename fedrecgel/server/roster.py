"""The server's view of who takes part: users by number, and what it accepted of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import ReplyError, RunError
from fedrecgel.common.greeting import Hello
from fedrecgel.common.hashing import uniform_cohort
from fedrecgel.common.interactions import Ints
from fedrecgel.common.requests import NEVER
from fedrecgel.server.admission import check_newcomer, check_return, check_together

NOWHERE = 0
"""Node id of a site that has none now; Flower's begin at 1."""


@dataclass(frozen=True)
class Member:
    """One site: its node's Flower id, and the numbers of its users, ``first .. last - 1``."""

    node_id: int
    hello: Hello
    first: int
    last: int

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.hello.site


class Roster:
    """All users of the federation, numbered in the order of (site, slot).

    The numbering does not depend on Flower's node ids, which are random, nor on the order in which
    nodes answer. A site that joins later is put at the end: nobody's number ever changes.

    Attributes
    ----------
    members : list of Member
        Sorted by site, then those that joined later.
    away : set of str
        Sites whose node Flower does not list. Their users are not chosen until it does again.
    accepted : (N,) int64
        The last round whose update was accepted, for each user; 0 = none.
    """

    def __init__(self, hellos: dict[int, Hello], catalogue: Catalogue | None = None) -> None:
        check_together(hellos.values(), catalogue.hash if catalogue else "")
        self.members: list[Member] = []
        self.away: set[str] = set()
        self._dropped: set[int] = set()
        self.accepted: Ints = np.zeros(0, dtype=np.int64)
        for node_id, hello in sorted(hellos.items(), key=lambda pair: pair[1].site):
            self._append(node_id, hello)

    @property
    def num_users(self) -> int:
        """Of all sites, also of those away."""
        return self.members[-1].last

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return self.members[0].hello.num_items

    @property
    def catalogue(self) -> str:
        """Hash of the catalogue."""
        return self.members[0].hello.catalogue

    @property
    def validation_users(self) -> int:
        """Users with a validation item, also of sites away."""
        return sum(member.hello.validation_users for member in self.members)

    @property
    def test_users(self) -> int:
        """Users with a test item, also of sites away."""
        return sum(member.hello.test_users for member in self.members)

    @property
    def nodes(self) -> set[int]:
        """Flower's ids of nodes that need not be asked who they are."""
        return {member.node_id for member in self.members} | self._dropped

    @property
    def here(self) -> list[Member]:
        """Sites that are not away."""
        if not self.away:
            return self.members
        return [member for member in self.members if member.site not in self.away]

    def users_here(self) -> Ints:
        """Numbers of the users of sites that are not away, ascending."""
        if not self.away:
            return np.arange(self.num_users)
        ranges = [np.arange(member.first, member.last) for member in self.here]
        return np.concatenate([np.zeros(0, dtype=np.int64), *ranges])

    # --- coming and going -------------------------------------------------------------------------

    def look(self, listed: Collection[int]) -> tuple[list[str], list[str]]:
        """Take note of which nodes there are; sites that went away since, and that came back."""
        away = {member.site for member in self.members if member.node_id not in listed}
        gone, back = sorted(away - self.away), sorted(self.away - away)
        self.away = away
        self._dropped.intersection_update(listed)
        return gone, back

    def admit(self, node_id: int, hello: Hello) -> bool:
        """Give a site that was here before its place again, or a new one the next; whether new.

        The node that had the place before is not used any more: one site, one node.

        Raises
        ------
        ReplyError
            When it does not fit.
        """
        at = next((i for i, member in enumerate(self.members) if member.site == hello.site), None)
        if at is not None:
            before = self.members[at]
            check_return(hello, before.hello)
            self._dropped.add(before.node_id)
            self._dropped.discard(node_id)
            self.members[at] = replace(before, node_id=node_id)
            self.away.discard(hello.site)
            return False
        prints = {m.hello.fingerprint: m.site for m in self.members}
        check_newcomer(hello, self.members[0].hello, prints)
        self._append(node_id, hello)
        return True

    def resume(self, then: Sequence[Hello]) -> None:
        """Take the numbering of a run that is gone on with; some sites may have no node now.

        Raises
        ------
        RunError
            When a site is not what it was.
        """
        nodes = {member.site: (member.node_id, member.hello) for member in self.members}
        self.members, self.accepted = [], self.accepted[:0]
        try:
            for hello in then:
                node_id, now = nodes.pop(hello.site, (NOWHERE, hello))
                check_return(now, hello)
                self._append(node_id, hello)
            for node_id, hello in nodes.values():
                self.admit(node_id, hello)
        except ReplyError as error:
            raise RunError(f"the run cannot go on: its sites differ: {error}") from None

    def _append(self, node_id: int, hello: Hello) -> None:
        first = self.members[-1].last if self.members else 0
        self.members.append(Member(node_id, hello, first, first + hello.users))
        self.accepted = extended(self.accepted, first + hello.users)

    # --- rounds -----------------------------------------------------------------------------------

    def cohort(
        self,
        seed: int,
        round: int,
        fraction: float,
        attempt: int = 0,
        choose: Callable[[Ints, int], Ints] | None = None,
    ) -> Ints:
        """Numbers of the users chosen in a round, ascending, among those of sites that are here.

        While nobody is away a function of seed and round alone. ``choose`` (`Algorithm.cohort`) has
        the users who can take part, and how many are wanted.
        """
        users = self.users_here()
        size = max(1, round_half_up(fraction * len(users)))
        return choose(users, size) if choose else uniform_cohort(users, size, seed, round, attempt)

    def split(self, users: Ints) -> list[tuple[Member, Ints]]:
        """Users (ascending numbers) by the node that hosts them; nodes without any are left out."""
        bounds = np.searchsorted(
            users, [member.first for member in self.members] + [self.num_users]
        )
        parts = zip(self.members, bounds[:-1], bounds[1:], strict=True)
        return [(member, users[a:b]) for member, a, b in parts if b > a]


def extended(accepted: Ints, size: int) -> Ints:
    """As many numbers as there are users now; those who joined later were never trained."""
    more = np.full(size - len(accepted), NEVER, dtype=np.int64)
    return np.concatenate([accepted, more]) if len(more) else accepted


def round_half_up(value: float) -> int:
    """Nearest whole number, halves up (Python's own rounds halves to even)."""
    return int(np.floor(value + 0.5))
