import re

import pytest

from fedrecgel.common.algorithms.registry import ALGORITHMS, algorithm_class, make_config
from fedrecgel.common.config import kebab
from fedrecgel.common.errors import ConfigError
from fedrecgel.simulation.compare.plan import (
    Cell,
    Entry,
    changed,
    check_settings,
    draw_trials,
    entries,
    given_to,
    start,
    typed,
)


def test_all_stands_for_every_algorithm_and_nothing_is_compared_twice():
    assert [row.algorithm for row in entries(["all"])] == list(ALGORITHMS)
    named = entries(["fedncf", "fedncf:tuned", "fedncf:paper", "fedncf:one-step"])
    assert [row.label for row in named] == ["fedncf", "fedncf:paper", "fedncf:one-step"]


@pytest.mark.parametrize("names", [["fedncv"], ["fedncf:best"], []])
def test_a_name_that_is_none_is_refused(names):
    with pytest.raises(ConfigError):
        entries(names)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_first_trial_is_the_start_and_every_algorithm_gets_the_same_budget(name):
    config = start(Entry(name), {})
    trials = draw_trials(config, 6)
    assert trials[0] == config
    assert len(trials) == len({str(trial.to_flat()) for trial in trials}) == 6
    assert draw_trials(config, 3) == trials[:3]  # a larger budget tries the same rows first
    assert draw_trials(config, 1) == [config]


def test_fedncf_is_searched_by_the_settings_of_its_way_to_train():
    for preset, wanted in (("paper", "local_epochs"), ("one-step", "private_steps")):
        trials = draw_trials(start(Entry("fedncf", preset), {}), 8)
        assert len({getattr(trial, wanted) for trial in trials}) > 1
    with pytest.raises(ConfigError, match="preset one-step is fedncf's"):
        start(Entry("fedmf", "one-step"), {})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_searched_are_settings_of_the_algorithm(name):
    cls = algorithm_class(name)
    known = {kebab(field) for field in cls.config_class.__dataclass_fields__}
    assert cls.search
    assert {kebab(setting) for setting in cls.search} <= known
    for setting, values in cls.search.items():
        for value in values:
            make_config(name, {setting: value})


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"item_lr": (10.0, -50.0)}, "`search` of fedmf: setting 'item-lr' must be at least 0"),
        (
            {"item_lr": ("a", "b")},
            "`search` of fedmf: setting 'item-lr' needs a value of type float",
        ),
        ({"item_lr": 10.0}, "`search` of fedmf: 'item-lr' needs a tuple of values, not 10.0"),
        ({"seed": (1, 2)}, "`search` of fedmf names 'seed', which is the same for all rows"),
        ({"rounds": (1, 2)}, "`search` of fedmf names 'rounds', which is the same for all rows"),
        (
            {"item_rate": (1.0,)},
            "`search` of fedmf names 'item-rate', which is none of its settings",
        ),
    ],
)
def test_a_grid_with_what_cannot_be_is_refused(search, said, monkeypatch):
    monkeypatch.setattr(algorithm_class("fedmf"), "search", search)
    with pytest.raises(ConfigError, match=re.escape(said)):
        draw_trials(start(Entry("fedmf"), {}), 3)


def test_a_setting_that_the_caller_chose_is_not_searched():
    config = start(Entry("fedncf"), {"server-lr": "0.3"})
    trials = draw_trials(config, 8, ["server-lr"])
    assert {trial.server_lr for trial in trials} == {0.3}


def test_rounds_and_the_metric_that_chooses_are_the_same_for_all():
    configs = [start(Entry(name), {"rounds": 7}) for name in ALGORITHMS]
    assert {(c.rounds, c.fraction, c.evaluate_every, c.select_by) for c in configs} == {
        (7, 0.1, 10, "full.ndcg@10")
    }


def test_a_setting_may_be_for_one_algorithm():
    given = {"fedncf.server-lr": 0.3}
    assert start(Entry("fedncf"), given).server_lr == 0.3
    assert start(Entry("fedrecgel"), given).server_lr != 0.3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".server-lr", "names no row; rows are fedrecgel, fedncf"),
        ("server-lrr", "did you mean 'server-lr'"),
        ("seed", "seeds are"),
        ("fedmf.rho-shared", "not compared"),
        ("fedncf.rho-shard", "unknown setting 'rho-shard' for fedncf"),
    ],
)
def test_a_setting_that_nobody_has_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        check_settings({name: "1"}, [Entry("fedrecgel"), Entry("fedncf")])
    check_settings({"rho-shared": "1"}, [Entry("fedncf"), Entry("fedrecgel")])


def test_a_setting_may_be_for_one_row_of_an_algorithm_and_is_not_searched_there():
    given = {"fedncf.server-lr": "0.3", "fedncf:one-step.server-lr": "0.7"}
    other, tuned = Entry("fedncf", "one-step"), Entry("fedncf")
    check_settings(given, [tuned, other])
    for row, rate in ((tuned, 0.3), (other, 0.7)):
        assert given_to(row, given) == {"server-lr": str(rate)}
        trials = draw_trials(start(row, given), 8, list(given_to(row, given)))
        assert len(trials) > 1
        assert {trial.server_lr for trial in trials} == {rate}
    assert given_to(Entry("fedrecgel"), given) == {}


def test_what_a_row_makes_no_use_of_is_not_for_it():
    given = {"local-epochs": "3", "server-lr": "0.5"}
    tuned, paper = Entry("fedncf"), Entry("fedncf", "paper")
    check_settings(given, [tuned, paper])
    assert given_to(tuned, given) == {"server-lr": "0.5"}
    assert given_to(paper, given) == {"local-epochs": "3"}
    assert (start(tuned, given).server_lr, start(paper, given).local_epochs) == (0.5, 3)


def test_what_was_set_is_told_as_numbers():
    given = {"item-lr": "1", "fedmf.item-lr": "3", "fraction": "0.5", "patience": "2"}
    told = typed([Entry("fedmf"), Entry("pfedrec")], given)
    assert told == {"item-lr": 1.0, "fedmf.item-lr": 3.0, "fraction": 0.5, "patience": 2}


def test_a_limit_on_memory_is_no_part_of_what_a_cell_is(small_data):
    config = make_config("gpfedrec", {"memory-limit": 20})
    cell = Cell.run("seed", small_data, config)
    assert cell.key == Cell.run("seed", small_data, make_config("gpfedrec")).key
    assert cell.limits == {"memory-limit": 20.0}
    assert Cell(**cell.to_json()) == cell


def test_a_cell_is_found_by_everything_that_decides_its_numbers(small_data, on_disk):
    config = make_config("fedncf", {"server-lr": 0.3, "seed": 2})
    cell = Cell.run("seed", small_data, config)
    assert cell.settings == {"server-lr": 0.3}
    assert cell.seed == 2
    others = [
        Cell.run("trial", small_data, config),
        Cell.run("seed", small_data, config.replace(seed=3)),
        Cell.run("seed", small_data, config.replace(rounds=3)),
        Cell.run("seed", small_data, make_config("fedrecgel", {"server-lr": 0.3, "seed": 2})),
    ]
    assert len({c.key for c in [cell, *others]}) == 5
    # A setting that has its default is the same as one that is not given.
    assert Cell.run("seed", small_data, config.replace(rounds=100)).key == cell.key
    assert changed(config) == {"server-lr": 0.3, "seed": 2}
    assert Cell(**cell.to_json()).key == cell.key
