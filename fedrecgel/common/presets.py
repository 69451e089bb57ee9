"""Named sets of settings: the papers' own, and what was found to work on each data set.

How the tuned settings were chosen (on validation only): docs/explanation/tuning.md.
"""

from collections.abc import Mapping
from typing import Any

from fedrecgel.common.algorithms.gradient import GradientAlgorithm
from fedrecgel.common.algorithms.registry import algorithm_class
from fedrecgel.common.config import Config, Scalar, kebab
from fedrecgel.common.errors import ConfigError

PRESETS = ("tuned", "paper", "one-step")

PAPER: Mapping[str, Mapping[str, Scalar]] = {"fedncf": {"sends": "change", "local-lr": 0.01}}
"""By algorithm, where the paper's (and its published code's) settings are not the defaults."""

_TUNED: dict[str, Scalar] = {
    "rounds": 200,
    "scorer": "dot",
    "embedding-dim": 64,
    "init-std": 0.1,
    "loss": "squares",
    "unknown-weight": 0.1,
    "private-optimizer": "newton",
    "private-weight-decay": 3.0,
    "server-optimizer": "adagrad",
    "server-lr": 0.1,
    "item-weight-decay": 3e-3,
    "average": 0.9,
    "rho-private": 0.0,
    "evaluate-every": 10,
    "select-by": "full.ndcg@10",
}

TUNED: Mapping[str, Mapping[str, Scalar]] = {
    "default": _TUNED,
    "ml-100k": _TUNED | {"private-weight-decay": 5.0},
    "filmtrust": _TUNED,
    "lastfm-2k": _TUNED | {"private-weight-decay": 5.0, "item-weight-decay": 5e-3},
    "amazon-video": _TUNED
    | {
        "embedding-dim": 128,
        "unknown-weight": 0.015,
        "private-weight-decay": 1.0,
        "item-weight-decay": 1e-3,
    },
}
"""Of FedRecGEL and of what is trained like it, by data set name; ``default`` for any other."""

TUNED_OTHERS: Mapping[str, Scalar] = {
    "rounds": 200,
    "evaluate-every": 10,
    "select-by": "full.ndcg@10",
}
"""Of algorithms whose settings mean something else: their own defaults, and these."""


def preset_settings(algorithm: str, preset: str, data_name: str) -> dict[str, Scalar]:
    """Settings of an algorithm's preset for a data set.

    Preset ``one-step`` is FedNCF's alone: the variant that FedRecGEL's authors compare with.
    """
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset '{preset}'; choose from {', '.join(PRESETS)}")
    if preset == "paper":
        return dict(PAPER.get(algorithm, {}))
    if preset == "one-step":
        if algorithm != "fedncf":
            raise ConfigError(f"preset one-step is fedncf's; {algorithm} has tuned and paper")
        return {}
    found = algorithm_class(algorithm)
    if not issubclass(found, GradientAlgorithm):
        return dict(TUNED_OTHERS)
    known = {kebab(name) for name in found.config_class.__dataclass_fields__}
    values = TUNED.get(data_name, TUNED["default"])
    return {name: value for name, value in values.items() if name in known}


def preset_config(
    algorithm: str, preset: str, data_name: str, settings: Mapping[str, Any]
) -> Config:
    """Effective settings: the preset's for this data set, then the caller's."""
    config_class = algorithm_class(algorithm).config_class
    values: dict[str, Any] = dict(preset_settings(algorithm, preset, data_name))
    values.update({kebab(name): value for name, value in settings.items()})
    return config_class.from_flat(values)
