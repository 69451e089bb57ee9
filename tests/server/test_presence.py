"""Sites that go away, come back, move to another node and join late (U006, U008, U013, U035)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedrecgel.client.app import app
from fedrecgel.client.own_data import open_own_data
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.errors import FederationError, RunError
from fedrecgel.common.hashing import mix
from fedrecgel.server import exchange as exchange_module
from fedrecgel.server.federation import Best
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import RUN_ID, InProcessGrid

pytestmark = pytest.mark.flower

Node = dict[str, Any]
ITEMS, USERS = 30, (5, 4, 3, 1)
CONFIG = {
    "rounds": 4,
    "fraction": 1.0,
    "scorer": "dot",
    "embedding-dim": 4,
    "init-std": 0.1,
    "evaluate-every": 1,
}


class ComingGrid(InProcessGrid):
    """Nodes can be taken off Flower's list, be silent, and be added."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(app, nodes, {})
        self.unlisted: set[int] = set()
        self.silent: set[int] = set()
        self.lost: set[int] = set()
        self.trained: list[tuple[int, int]] = []
        """(round, node) of every training message that was answered."""

    def get_node_ids(self) -> list[int]:
        return [node for node in super().get_node_ids() if node not in self.unlisted]

    def pull_messages(self, message_ids: Any) -> list[Message]:
        away = self.silent | self.unlisted
        heard = [
            i
            for i in message_ids
            if i in self._pending and self._pending[i].metadata.dst_node_id not in away
        ]
        return super().pull_messages(heard)

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type == "train":
            found = int(message.content["request"]["round"]), message.metadata.dst_node_id
            self.trained.append(found)
        return super()._answer(message)

    def add(self, config: Node) -> int:
        node = max(self._contexts) + 1
        self._contexts[node] = Context(RUN_ID, node, config, RecordDict(), {})
        return node

    def node_of(self, site: int) -> int:
        return site + 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each site, and ``all``: the data set of all users."""
    folder = tmp_path_factory.mktemp("files")
    rows: list[list[str]] = [[] for _ in USERS]
    for user in range(sum(USERS)):
        site = int(np.searchsorted(np.cumsum(USERS), user, side="right"))
        items = np.argsort(mix("presence", user, np.arange(ITEMS)))[: 5 + user % 4]
        rows[site] += [f"u{user:02d},{item},{time}" for time, item in enumerate(items)]
    for site, lines in enumerate(rows):
        (folder / f"{site}.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    everything = ["user,item,time", *(line for lines in rows for line in lines)]
    (folder / "all.csv").write_text("\n".join(everything) + "\n")
    prepare(folder / "all.csv", folder / "all", num_candidates=5)
    return folder


class Sites:
    """Node-configs of sites with `USERS` users, and runs over them."""

    def __init__(self, files: Path, state: Path) -> None:
        self.files, self.state = files, state
        self.catalogue = Catalogue.of(Dataset.load(files / "all"))
        self.lines: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.failures: list[tuple[str, str]] = []

    def node(self, number: int, **changes: Any) -> Node:
        values = {"site": f"site-{number}", "interactions": str(self.files / f"{number}.csv")}
        return {**values, "state": str(self.state / f"state-{number}"), **changes}

    def grid(self, sites: int = 3) -> ComingGrid:
        return ComingGrid([self.node(site) for site in range(sites)])

    def strategy(
        self, after: Callable[[int], None] = lambda round: None, **changes: Any
    ) -> FedRecStrategy:
        """``after`` is called with the number of each round that is done."""
        options = {k: changes.pop(k) for k in ("run_folder", "resume", "wait") if k in changes}

        def on_round(line: dict[str, Any]) -> None:
            self.lines.append(line)
            after(line["round"])

        return FedRecStrategy(
            make_config("fedrecgel", {**CONFIG, **changes}),
            min_nodes=1,
            on_round=on_round,
            on_failure=lambda site, failure: self.failures.append((site, failure.reason)),
            say=self.said.append,
            catalogue=self.catalogue,
            **{"wait": 0.0, **options},
        )

    def private(self, strategy: FedRecStrategy, site: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Last rounds and states of the users of a site."""
        experiment = strategy.federation.experiment
        opened = open_own_data(self.node(site), experiment)
        algorithm = make_algorithm(strategy.config, experiment.num_items)
        store = opened.store(experiment, algorithm.private_template)
        rounds = store.latest(opened.users)
        return rounds, store.load(opened.users, rounds)


@pytest.fixture
def sites(files: Path, tmp_path: Path) -> Sites:
    return Sites(files, tmp_path)


def sites_by_round(grid: ComingGrid) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for round, node in grid.trained:
        found.setdefault(round, []).append(node - 2)
    return found


# --- away and back --------------------------------------------------------------------------------


def test_a_site_that_is_away_is_passed_over_and_used_again_when_it_is_back(sites: Sites) -> None:
    grid = sites.grid()
    changes = {1: {grid.node_of(1)}, 3: set[int]()}

    def after(round: int) -> None:
        grid.unlisted = changes.get(round, grid.unlisted)

    outcome = _run(sites, grid, after)
    assert sites_by_round(grid) == {1: [0, 1, 2], 2: [0, 2], 3: [0, 2], 4: [0, 1, 2]}
    assert [line["away"] for line in sites.lines] == [[], ["site-1"], ["site-1"], []]
    assert [line["users"] for line in sites.lines] == [12, 8, 8, 12]
    assert [line["evaluated"] for line in sites.lines] == [
        {"users": users, "eligible": 12} for users in (12, 8, 8, 12)
    ]
    assert sites.said == [
        "site-1 is away; 2 of 3 sites are there",
        "site-1 is back; 3 of 3 sites are there",
    ]
    assert sites.failures == []
    assert outcome.roster.accepted.tolist() == [4] * 12


def _run(sites: Sites, grid: ComingGrid, after: Callable[[int], None], **changes: Any) -> Any:
    strategy = sites.strategy(after, **changes)
    strategy.start(grid)
    return strategy.outcome


def test_who_was_skipped_goes_on_from_the_very_state_of_the_last_accepted_round(
    sites: Sites,
) -> None:
    """U006, U013: bitwise, while others train, and over lost replies."""
    grid, seen = sites.grid(), {}

    def after(round: int) -> None:
        seen[round] = sites.private(strategy, 1)
        grid.unlisted = {grid.node_of(1)} if round in (1, 2) else set()

    strategy = sites.strategy(after)
    strategy.start(grid)
    rounds = [seen[round][0].tolist() for round in (1, 2, 3, 4)]
    assert rounds == [[1] * 4, [1] * 4, [1] * 4, [4] * 4]
    for name, value in seen[1][1].items():
        assert torch.equal(seen[3][1][name], value)
        assert not torch.equal(seen[4][1][name], value)


def test_a_lost_reply_leaves_no_trace_in_private_state(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site trains in round 2 but goes away with its reply: it ends as if it had been away."""
    ends = []
    for number, lose in enumerate((True, False)):
        sites = Sites(files, tmp_path / str(number))
        grid = sites.grid()

        def after(round: int, grid: ComingGrid = grid, lose: bool = lose) -> None:
            node = grid.node_of(1)
            grid.unlisted = {node} if round == 1 and not lose else set()
            grid.lost = {node} if round == 1 and lose else set()

        answer = grid._answer

        def losing(message: Message, grid: ComingGrid = grid, answer: Any = answer) -> Message:
            reply: Message = answer(message)
            train = message.metadata.message_type == "train"
            if train and message.metadata.dst_node_id in grid.lost:
                reply.content["metrics"]["round"] = 99  # it is refused, after it was computed
            return reply

        monkeypatch.setattr(grid, "_answer", losing)
        strategy = sites.strategy(after, **{"min-replies": 0.1, "dtype": "float64"})
        strategy.start(grid)
        assert sites.lines[1]["users"] == 8
        ends.append((strategy.outcome, sites.private(strategy, 1)[1]))
    (lost, state), (away, expected) = ends
    assert torch.equal(lost.best.shared["items"], away.best.shared["items"])
    for name, value in expected.items():
        assert torch.equal(state[name], value)


def test_a_node_that_goes_away_in_the_middle_of_a_round_is_not_waited_for(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LOOK", 0.01), ("GONE", 0.05)):
        monkeypatch.setattr(exchange_module, name, seconds)
    grid = sites.grid()
    node = grid.node_of(2)

    def after(round: int) -> None:
        grid.silent = {node} if round == 1 else set()

    look = grid.get_node_ids

    def listing() -> list[int]:
        listed = look()
        if grid.silent and any(m.metadata.dst_node_id == node for m in grid._pending.values()):
            listed.remove(node)
        return listed

    monkeypatch.setattr(grid, "get_node_ids", listing)
    _run(sites, grid, after)
    assert sites.failures[0] == ("site-2", "node went away")
    assert [line["users"] for line in sites.lines] == [12, 9, 12, 12]


@pytest.mark.parametrize(
    ("missing", "given_up"),
    [([], None), (range(90), 8), (range(4, 90), 10), (range(4, 7), 64), ([3, 5], None)],
)
def test_a_node_is_given_up_when_it_was_missed_for_long(
    missing: list[int], given_up: int | None
) -> None:
    """Looks are at even seconds; gone for good it is given up after 5, back again after 60."""

    class Listing:
        def get_node_ids(self) -> list[int]:
            return [] if now in missing else [2]

    now = 0
    grid: Any = Listing()
    absent = exchange_module._Absent(grid, lambda: now)
    found = None
    for now in range(90):
        if found is None and absent.given_up({2}):
            found = now
    assert found == given_up


# --- another node, late sites -----------------------------------------------------------------


def test_a_site_on_another_node_takes_its_place_and_the_ghost_is_dropped(sites: Sites) -> None:
    """U035: the killed node is still listed for a while, and even answers."""
    grid = sites.grid()
    new = []

    def after(round: int) -> None:
        if round == 2:
            new.append(grid.add(sites.node(1)))

    outcome = _run(sites, grid, after)
    by_round = sites_by_round(grid)
    assert by_round[2] == [0, 1, 2]
    assert by_round[3] == by_round[4] == [0, new[0] - 2, 2]
    assert [line["users"] for line in sites.lines] == [12] * 4
    assert sites.said == ["site-1 has another node now"]
    assert outcome.roster.accepted.tolist() == [4] * 12
    assert outcome.test["full"].users == 12


def test_a_site_that_comes_back_on_another_node_goes_on_with_its_private_state(
    sites: Sites,
) -> None:
    grid, seen = sites.grid(), {}

    def after(round: int) -> None:
        seen[round] = sites.private(strategy, 1)[0].tolist()
        if round == 1:
            grid.unlisted = {grid.node_of(1)}
        if round == 2:
            grid.add(sites.node(1))

    strategy = sites.strategy(after)
    strategy.start(grid)
    assert seen == {1: [1] * 4, 2: [1] * 4, 3: [3] * 4, 4: [4] * 4}
    assert sites.said == ["site-1 is away; 2 of 3 sites are there", "site-1 is back"]


def test_a_site_that_joins_late_takes_part_from_the_next_round_on(sites: Sites) -> None:
    """U008; nobody's number changes."""
    grid = ComingGrid([sites.node(1), sites.node(2)])

    def after(round: int) -> None:
        if round == 2:
            grid.add(sites.node(0))

    outcome = _run(sites, grid, after)
    assert [m.site for m in outcome.roster.members] == ["site-1", "site-2", "site-0"]
    assert [line["users"] for line in sites.lines] == [7, 7, 12, 12]
    assert outcome.roster.accepted.tolist() == [4] * 12
    assert sites.said == ["site-0 joined with 5 users"]
    assert outcome.test["full"].users == 12


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"interactions": "0.csv"}, "site 'site-1' came back with 5 users, it had 4"),
        ({"interactions": "other.csv"}, "site 'site-1' came back with other data"),
        ({"site": "site-9"}, "site 'site-9' has the very same data as 'site-1'"),
        ({"interactions": "none.csv"}, "site-1: .*none.csv cannot be read"),
    ],
)
def test_a_node_that_does_not_fit_is_left_out_in_one_line(
    sites: Sites, changes: dict[str, str], reason: str
) -> None:
    text = (sites.files / "1.csv").read_text().splitlines()
    last = text[-1].split(",")
    unseen = next(i for i in range(ITEMS) if f"{last[0]},{i}," not in "\n".join(text))
    other = [*text, f"{last[0]},{unseen},99"]
    (sites.state / "other.csv").write_text("\n".join(other) + "\n")
    if "interactions" in changes:
        folder = sites.state if "other" in changes["interactions"] else sites.files
        changes = {"interactions": str(folder / changes["interactions"])}
    grid = sites.grid()

    def after(round: int) -> None:
        if round == 1:
            grid.add(sites.node(1, state=str(sites.state / "elsewhere"), **changes))

    outcome = _run(sites, grid, after)
    assert [line["users"] for line in sites.lines] == [12] * 4
    (failure,) = sites.failures
    assert failure[0] == "node 5"
    assert re.match(f"cannot take part: {reason}", failure[1])
    assert "\n" not in failure[1]
    assert len(outcome.roster.members) == 3


# --- nobody there, resume -----------------------------------------------------------------------


def test_when_all_sites_are_away_the_run_stops_with_what_is_done(
    sites: Sites, tmp_path: Path
) -> None:
    whole = Sites(sites.files, tmp_path / "whole")
    unbroken = whole.strategy(dtype="float64")
    unbroken.start(whole.grid())
    expected = unbroken.federation.server.shared["items"]
    grid = sites.grid()

    def after(round: int) -> None:
        grid.unlisted = {2, 3, 4} if round == 3 else set()

    options: dict[str, Any] = {"run_folder": tmp_path / "run", "dtype": "float64"}
    with pytest.raises(FederationError, match="round 4: no site is there, 0 s were waited") as stop:
        _run(sites, grid, after, **{**options, "evaluate-every": 2})
    assert "\n" not in str(stop.value)
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "00000002",
        "00000003",
    ]
    grid.unlisted = set()
    again = sites.strategy(resume=True, **{**options, "evaluate-every": 2})
    again.start(grid)
    assert again.outcome is not None
    assert torch.equal(again.federation.server.shared["items"], expected)
    assert again.outcome.roster.accepted.tolist() == [4] * 12


def test_somebody_who_comes_within_the_wait_is_waited_for(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrecgel.server import presence

    monkeypatch.setattr(presence, "PAUSE", 0.01)
    grid = sites.grid()
    looks = 0
    listing = grid.get_node_ids

    def late() -> list[int]:
        nonlocal looks
        looks += bool(grid.unlisted)
        if looks > 5:
            grid.unlisted = set()
        return listing()

    monkeypatch.setattr(grid, "get_node_ids", late)

    def after(round: int) -> None:
        grid.unlisted = {2, 3, 4} if round == 2 else set()

    _run(sites, grid, after, wait=5.0)
    assert [line["users"] for line in sites.lines] == [12] * 4


def test_a_resumed_run_knows_its_sites_by_name(sites: Sites, tmp_path: Path) -> None:
    """One is not there at first, one has joined late, one is new; none starts anew."""
    grid = ComingGrid([sites.node(1), sites.node(2)])
    options: dict[str, Any] = {"run_folder": tmp_path / "run"}

    def join(round: int) -> None:
        if round == 1:
            grid.add(sites.node(0))

    _run(sites, grid, join, rounds=2, **options)
    grid = ComingGrid([sites.node(3), sites.node(0), sites.node(1)])

    def back(round: int) -> None:
        if round == 3:
            grid.add(sites.node(2))

    outcome = _run(sites, grid, back, rounds=4, resume=True, **options)
    assert [m.site for m in outcome.roster.members] == ["site-1", "site-2", "site-0", "site-3"]
    assert [line["users"] for line in sites.lines] == [7, 12, 10, 13]
    assert [line["away"] for line in sites.lines] == [[], [], ["site-2"], []]
    assert outcome.roster.accepted.tolist() == [4] * 13


def test_a_resumed_run_refuses_a_site_with_other_data(sites: Sites, tmp_path: Path) -> None:
    _run(sites, sites.grid(), lambda round: None, run_folder=tmp_path / "run", rounds=2)
    nodes = [sites.node(0), sites.node(1, interactions=str(sites.files / "3.csv"))]
    nodes[1]["state"] = str(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="its sites differ: site 'site-1' came back with 1 users"):
        _run(sites, ComingGrid(nodes), lambda round: None, run_folder=tmp_path / "run", resume=True)


def test_sites_away_are_waited_for_before_the_final_test(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrecgel.server import presence

    monkeypatch.setattr(presence, "PAUSE", 0.01)
    grid = sites.grid()

    def after(round: int) -> None:
        grid.unlisted = {3} if round == 4 else set()

    def say(text: str) -> None:
        sites.said.append(text)
        if "waiting" in text:
            grid.unlisted = set()

    strategy = sites.strategy(after, wait=5.0)
    strategy.say = say
    strategy.start(grid)
    assert strategy.outcome is not None
    assert strategy.outcome.test["full"].users == 12
    assert "final test: waiting 5 s for site-1" in sites.said


def test_a_final_test_without_a_site_counts_the_others(sites: Sites) -> None:
    grid = sites.grid()

    def after(round: int) -> None:
        grid.unlisted = {3} if round == 4 else set()

    outcome = _run(sites, grid, after)
    assert outcome.test["full"].users == 8
    assert outcome.roster.test_users == 12


def test_an_evaluation_from_which_everybody_went_away_is_made_again(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LOOK", 0.01), ("GONE", 0.05)):
        monkeypatch.setattr(exchange_module, name, seconds)
    grid = sites.grid()
    pull = grid.pull_messages

    def vanish(message_ids: Any) -> list[Message]:
        """At the first evaluation nobody answers; everybody is there again when it is given up."""
        pending = [grid._pending[i] for i in message_ids if i in grid._pending]
        evaluating = any(m.metadata.message_type == "evaluate" for m in pending)
        grid.unlisted = {2, 3, 4} if evaluating and len(sites.failures) < 3 else set()
        return pull(message_ids)

    listing = grid.get_node_ids

    def listed() -> list[int]:
        if len(sites.failures) >= 3:
            grid.unlisted = set()
        return listing()

    monkeypatch.setattr(grid, "pull_messages", vanish)
    monkeypatch.setattr(grid, "get_node_ids", listed)
    _run(sites, grid, lambda round: None, wait=60.0, rounds=2)
    assert sites.failures == [(f"site-{site}", "node went away") for site in range(3)]
    assert [line["evaluated"]["users"] for line in sites.lines] == [12, 12]


# --- which round is best ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "value", "better"),
    [
        # the same sites: the means decide
        ([[10, 5.0], [10, 2.0]], 0.35, True),
        ([[10, 4.0], [10, 2.0]], 0.30, False),
        # site 1 is away: its users were hard to please, so the mean rises without any progress
        ([[10, 4.0], [0, 0.0]], 0.40, False),
        ([[10, 4.1], [0, 0.0]], 0.41, True),
        # site 0 is away: the mean falls, and yet those that are there do better
        ([[0, 0.0], [10, 2.5]], 0.25, True),
        # nobody answered both
        ([[0, 0.0], [0, 0.0]], float("nan"), False),
    ],
)
def test_rounds_are_compared_over_sites_that_answered_both(
    now: list[list[float]], value: float, better: bool
) -> None:
    nothing: Any = None
    then = np.array([[10, 4.0], [10, 2.0]])
    best = Best(1, 0.30, nothing, nothing, nothing, then)
    assert best.beaten_by(value, np.array(now)) is better
    late = Best(1, 0.40, nothing, nothing, nothing, np.array([[10, 4.0], [0, 0.0]]))
    assert late.beaten_by(0.1, np.array([[10, 4.1], [90, 0.0]]))
    nobody = Best(1, float("nan"), nothing, nothing, nothing, np.zeros((2, 2)))
    assert nobody.beaten_by(value, np.array(now))
