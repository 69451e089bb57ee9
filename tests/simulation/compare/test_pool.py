from pathlib import Path

import pytest

from fedrecgel.simulation.compare.plan import Cell
from fedrecgel.simulation.compare.pool import Job, Limit, too_long
from fedrecgel.simulation.compare.store import Outcome

CELL = Cell("seed", "fedncf", "made", "a" * 64)


def job(rounds):
    return Job(CELL, Path("data"), rounds)


def test_a_cell_that_would_take_too_long_is_known_by_its_first_rounds():
    limit = Limit(100.0)
    # 3 rounds in 6 s: 100 rounds take 200 s.
    late = limit.exceeded(job(100), elapsed=6.0, rounds=3, at=6.0)
    assert (late["seconds_per_round"], late["estimate"], late["at_least"]) == (2.0, 200.0, False)
    assert too_long(late) == "2 s a round x 100 rounds = 200 s, the limit is 100 s"


@pytest.mark.parametrize(
    ("elapsed", "rounds", "at"),
    [
        (6.0, 10, 6.0),  # 0.6 s a round: 60 s
        (4.9, 3, 4.9),  # less than a twentieth of the limit: too early to say
        (6.0, 1, 6.0),  # the first round alone says nothing
        (99.0, 0, 0.0),
    ],
)
def test_a_cell_that_may_end_in_time_goes_on(elapsed, rounds, at):
    assert Limit(100.0).exceeded(job(100), elapsed, rounds, at) is None
    assert Limit(None).exceeded(job(100), 1e9, rounds, at) is None


def test_a_cell_without_a_single_round_in_time_is_at_least_so_slow():
    late = Limit(100.0).exceeded(job(50), elapsed=101.0, rounds=0, at=0.0)
    assert late["at_least"]
    assert too_long(late) == "more than 1e+02 s a round x 50 rounds = 5,050 s, the limit is 100 s"


def test_a_trial_is_too_slow_when_a_seed_with_its_settings_would_be():
    # 2 s a round: the trial's 40 rounds would end in time, the seed's 100 would not.
    trial = Job(CELL, Path("data"), rounds=40, whole=100)
    late = Limit(100.0).exceeded(trial, elapsed=6.0, rounds=3, at=6.0)
    assert too_long(late) == "2 s a round x 100 rounds = 200 s, the limit is 100 s"
    assert Limit(100.0).exceeded(job(40), elapsed=6.0, rounds=3, at=6.0) is None
    # 0.9 s a round: both would.
    assert Limit(100.0).exceeded(trial, elapsed=9.0, rounds=10, at=9.0) is None


@pytest.mark.parametrize(
    ("elapsed", "rounds", "at"),
    [(6.0, 3, 6.0), (101.0, 0, 0.0), (101.0, 100, 60.0)],  # the last: 40 s after its rounds
)
def test_what_took_too_long_is_not_made_again_under_the_same_limit(elapsed, rounds, at):
    late = Limit(100.0).exceeded(job(100), elapsed, rounds, at)
    kept = Outcome("infeasible", too_long(late), late)
    assert Limit(100.0).judge(job(100), kept) == kept
    assert Limit(1e6).judge(job(100), kept) is None
    assert Limit(None).judge(job(100), kept) is None


def test_what_is_slow_after_its_rounds_says_so():
    late = Limit(100.0).exceeded(job(100), elapsed=101.0, rounds=100, at=60.0)
    assert too_long(late) == "took more than 101 s, the limit is 100 s"


def test_a_reference_has_no_rounds():
    late = Limit(1.0).exceeded(job(0), elapsed=1.5, rounds=0, at=0.0)
    assert too_long(late) == "took more than 1.5 s, the limit is 1 s"
