"""Who is there: sites go away, come back and join while a run goes on."""

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.greeting import Hello
from fedrecgel.server.exchange import Failure
from fedrecgel.server.federation import Federation
from fedrecgel.server.gathering import CANNOT, Arrivals
from fedrecgel.server.history import Tally

NAMED = 3
"""Sites that are named in a line; of more the number is told."""
PAUSE = 0.5
"""Seconds between two looks while nobody is there."""


class Presence:
    """Looks before each round which nodes there are, and keeps the roster up to date.

    Parameters
    ----------
    arrivals
        Asks nodes that nobody knows.
    new_tally
        Makes what failures are counted in.
    say
        Told in a line of everybody who goes or comes.
    wait
        Seconds to wait when nobody is there.
    """

    def __init__(
        self,
        grid: Grid,
        federation: Federation,
        arrivals: Arrivals,
        *,
        new_tally: Callable[[], Tally],
        say: Callable[[str], None],
        wait: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._federation = federation
        self._arrivals = arrivals
        self._new_tally = new_tally
        self._say = say
        self._wait = wait
        self._clock = clock
        self._sleep = sleep

    def look(self, what: str) -> None:
        """Take note of who is there, and wait for somebody if nobody is.

        Raises
        ------
        FederationError
            When nobody came; ``what`` says before what.
        """
        if not self._until(self._somebody):
            raise FederationError(
                f"{what}: no site is there, {self._wait:g} s were waited; start the nodes and go "
                "on with resume"
            )

    def wait_for_all(self, what: str) -> None:
        """Wait for the sites that are away, if any are; go on without them if they do not come."""
        self._note()
        away = self._federation.roster.away
        if away:
            self._say(f"{what}: waiting {self._wait:g} s for {_named(sorted(away))}")
            self._until(lambda: not self._federation.roster.away)

    def _somebody(self) -> bool:
        roster = self._federation.roster
        return not roster.away or len(roster.users_here()) > 0

    def _until(self, reached: Callable[[], bool]) -> bool:
        end = self._clock() + self._wait
        while True:
            self._note()
            if reached():
                return True
            if self._clock() >= end:
                return False
            self._sleep(PAUSE)

    def _note(self) -> None:
        roster, tally = self._federation.roster, self._new_tally()
        listed = set(self._grid.get_node_ids())
        for node, hello in self._arrivals.look(listed, roster.nodes, tally).items():
            self._admit(node, hello, tally)
        self._federation.history.count(tally)
        gone, back = roster.look(listed)
        here = f"{len(roster.here)} of {len(roster.members)} sites are there"
        for names, verb in ((gone, "away"), (back, "back")):
            if names:
                self._say(f"{_named(names)} {'are' if len(names) > 1 else 'is'} {verb}; {here}")

    def _admit(self, node: int, hello: Hello, tally: Tally) -> None:
        roster = self._federation.roster
        away = hello.site in roster.away
        try:
            new = roster.admit(node, hello)
        except ReplyError as error:
            tally.add(Failure(node, f"{CANNOT}: {error}"))
            return
        self._federation.grow()
        if new:
            self._say(f"{hello.site} joined with {hello.users} users")
        else:
            self._say(f"{hello.site} is back" if away else f"{hello.site} has another node now")


def _named(sites: list[str]) -> str:
    more = len(sites) - NAMED
    return ", ".join(sites) if more <= 0 else f"{', '.join(sites[:NAMED])} and {more} more"
