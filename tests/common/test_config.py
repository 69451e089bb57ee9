"""Settings: types, ranges, names, and errors that say what would do."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.algorithms.registry import ALGORITHMS, make_config
from fedrecgel.common.config import Config, kebab, setting, setting_help
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.presets import PRESETS, TUNED, preset_settings


@dataclass(frozen=True, kw_only=True)
class Small(Config):
    """Settings of a test."""

    algorithm: ClassVar[str] = "small"

    learning_rate: float = setting(0.1, "rate", low=0, high=1)
    careful: bool = setting(False, "be careful")
    kind: str = setting("round", "shape", choices=("round", "square"))


def test_defaults_are_the_papers() -> None:
    config: Any = make_config("fedrecgel")
    assert (config.scorer, config.embedding_dim, config.init_std) == ("neumf", 32, 0.01)
    assert (config.loss, config.num_negatives, config.private_steps) == ("chunked-sum", 4, 1)
    assert (config.local_lr, config.server_lr, config.server_optimizer) == (0.1, 0.001, "adam")
    assert (config.fraction, config.rounds, config.dtype, config.seed) == (0.1, 100, "float32", 0)
    assert (config.private_weight_decay, config.item_weight_decay) == (0.0, 0.0)


def test_strings_are_parsed_to_the_type_of_the_setting() -> None:
    config = Small.from_flat(
        {"rounds": "7", "learning-rate": "1e-3", "careful": "True", "kind": "square"}
    )
    assert (config.rounds, config.learning_rate) == (7, 0.001)
    assert config.careful is True
    assert config.kind == "square"
    assert type(Small(learning_rate=1).learning_rate) is float
    assert type(Small(rounds=3.0).rounds) is int  # type: ignore[arg-type]


def test_snake_case_and_kebab_case_are_one_name() -> None:
    assert kebab("local_lr") == "local-lr"
    assert Small.from_flat({"learning_rate": 0.5}) == Small.from_flat({"learning-rate": 0.5})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"learning-rat": 1},
            "unknown setting 'learning-rat' for small; did you mean 'learning-rate'?",
        ),
        ({"zzz": 1}, "unknown setting 'zzz' for small; all of them: fedrecgel simulate --help"),
        ({"rounds": "ten"}, "setting 'rounds' needs a value of type int, not 'ten'"),
        ({"rounds": 1.5}, "setting 'rounds' needs a value of type int, not 1.5"),
        ({"rounds": True}, "setting 'rounds' needs a value of type int, not True"),
        ({"rounds": None}, "setting 'rounds' needs a value of type int, not None"),
        ({"learning-rate": [1]}, "setting 'learning-rate' needs a value of type float, not [1]"),
        ({"careful": 1}, "setting 'careful' needs a value of type bool, not 1"),
        ({"careful": "yes"}, "setting 'careful' needs a value of type bool, not 'yes'"),
        ({"kind": 3}, "setting 'kind' needs a value of type str, not 3"),
        ({"kind": "squar"}, "setting 'kind' cannot be 'squar'; choose from round, square"),
        ({"kind": "zzz"}, "setting 'kind' cannot be 'zzz'; choose from round, square"),
        ({"rounds": 0}, "setting 'rounds' must be at least 1, not 0"),
        ({"learning-rate": 2}, "setting 'learning-rate' must be between 0 and 1, not 2.0"),
        ({"learning-rate": "nan"}, "setting 'learning-rate' must be a finite number, not nan"),
        ({"round-timeout": "inf"}, "setting 'round-timeout' must be a finite number, not inf"),
        ({"fraction": 0}, "setting 'fraction' must be between 1e-09 and 1, not 0.0"),
        ({"seed": -1}, "setting 'seed' must be between 0 and 2147483647, not -1"),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_what_would_do(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Small.from_flat(values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_unknown_algorithm_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown algorithm 'fedrecgl'; did you mean 'fedrecgel'"):
        make_config("fedrecgl")
    with pytest.raises(ConfigError, match="choose from fedrecgel, fedmf, fedncf"):
        make_config("")


def test_a_setting_of_another_algorithm_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'rho-shared' for fedncf"):
        make_config("fedncf", {"rho-shared": 0.1})


@given(
    rounds=st.integers(1, 10**6),
    rate=st.floats(0, 1),
    careful=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
)
def test_flat_form_round_trips_also_as_text(
    rounds: int, rate: float, careful: bool, seed: int
) -> None:
    config = Small(rounds=rounds, learning_rate=rate, careful=careful, seed=seed)
    flat = config.to_flat()
    assert all("_" not in name for name in flat)
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    assert Small.from_flat(flat) == config
    assert Small.from_flat({name: str(value) for name, value in flat.items()}) == config


def test_replace_changes_only_what_it_is_told() -> None:
    config = Small(rounds=3).replace(learning_rate=0.5, kind="square")
    assert (config.rounds, config.learning_rate, config.kind) == (3, 0.5, "square")
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        config.replace(round=3)


def test_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        Small().rounds = 5  # type: ignore[misc]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_has_a_line_of_help(name: str) -> None:
    rows = setting_help(ALGORITHMS[name].config_class)
    assert {row[0] for row in rows} == set(make_config(name).to_flat())
    assert all(text and "\n" not in text for _, _, text in rows)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("data", [*TUNED, "somebody's file"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_presets_are_valid_settings(name: str, data: str, preset: str) -> None:
    if preset == "one-step" and name != "fedncf":
        with pytest.raises(ConfigError, match=f"one-step is fedncf's; {name} has tuned and paper"):
            preset_settings(name, preset, data)
    else:
        make_config(name, preset_settings(name, preset, data))


def test_preset_paper_of_fedncf_is_its_paper_and_one_step_what_fedrecgel_compares_with() -> None:
    paper: Any = make_config("fedncf", preset_settings("fedncf", "paper", "any"))
    assert (paper.sends, paper.local_epochs, paper.row_average) == ("change", 2, True)
    assert make_config("fedncf", preset_settings("fedncf", "one-step", "any")).sends == "gradient"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"sends": "change", "loss": "mean", "server-lr": 0.1},
            "sends=change makes no use of loss, server-lr; leave it out, and start from "
            "preset paper",
        ),
        (
            {"local-epochs": 3, "row-average": False},
            "sends=gradient makes no use of local-epochs, row-average; leave it out, and start "
            "from preset one-step or tuned",
        ),
    ],
)
def test_settings_of_the_other_way_to_train_fedncf_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config("fedncf", settings)


def test_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'best'; choose from tuned, paper"):
        preset_settings("fedrecgel", "best", "any")


def test_few_choices_are_all_named() -> None:
    """A near name may be near by chance: 'foo' is no misspelt 'on-off'."""
    with pytest.raises(ConfigError) as found:
        make_config("fedrap", {"schedule": "foo"})
    assert str(found.value) == (
        "setting 'schedule' cannot be 'foo'; choose from tanh, sin, on-off, falling, none"
    )


def test_an_unknown_setting_gets_its_nearest_names_and_no_long_list() -> None:
    with pytest.raises(ConfigError) as found:
        make_config("perfedrec", {"clustr-weight": 1})
    assert "did you mean 'cluster-weight'" in str(found.value)
    assert len(str(found.value)) < 200
    with pytest.raises(ConfigError, match="all of them: fedrecgel simulate --help"):
        make_config("perfedrec", {"zzzzzz": 1})


def test_a_blend_of_nothing_is_refused() -> None:
    weights = dict.fromkeys(("global-weight", "cluster-weight", "local-weight"), 0.0)
    with pytest.raises(ConfigError, match="are all 0, which scores every item alike"):
        make_config("perfedrec", weights)
    assert make_config("perfedrec", {**weights, "local-weight": 1.0}).to_flat()["local-weight"] == 1
