"""Named sets of settings: the paper's own, and what was found to work on each data set.

How the tuned settings were chosen (on validation only): docs/explanation/tuning.md.
"""

from collections.abc import Mapping
from typing import Any

from fedrecgel.common.algorithms.registry import algorithm_class
from fedrecgel.common.config import Config, Scalar, kebab
from fedrecgel.common.errors import ConfigError

PRESETS = ("tuned", "paper")

PAPER: Mapping[str, Scalar] = {}
"""The defaults are the paper's (and its published code's) settings."""

_TUNED: dict[str, Scalar] = {
    "rounds": 400,
    "scorer": "dot",
    "embedding-dim": 64,
    "init-std": 0.1,
    "loss": "mean",
    "private-steps": 5,
    "local-lr": 0.05,
    "private-weight-decay": 3e-3,
    "server-optimizer": "adagrad",
    "server-lr": 0.2,
    "item-weight-decay": 1e-5,
    "evaluate-every": 10,
    "select-by": "full.ndcg@10",
}

TUNED: Mapping[str, Mapping[str, Scalar]] = {
    "default": _TUNED,
    "ml-100k": _TUNED
    | {
        "embedding-dim": 128,
        "server-optimizer": "adam",
        "server-lr": 0.01,
        "item-weight-decay": 5e-5,
    },
    "filmtrust": _TUNED | {"server-lr": 0.1, "item-weight-decay": 3e-5, "num-negatives": 16},
    "lastfm-2k": _TUNED,
    "amazon-video": _TUNED
    | {"num-negatives": 8, "private-weight-decay": 1e-2, "evaluate-every": 20},
}
"""By data set name; ``default`` for any other."""


def preset_settings(preset: str, data_name: str, known: set[str]) -> dict[str, Scalar]:
    """Settings of a preset for a data set, limited to those the algorithm has (``known``)."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset '{preset}'; choose from {', '.join(PRESETS)}")
    values = PAPER if preset == "paper" else TUNED.get(data_name, TUNED["default"])
    return {name: value for name, value in values.items() if name in known}


def preset_config(
    algorithm: str, preset: str, data_name: str, settings: Mapping[str, Any]
) -> Config:
    """Effective settings: the preset's for this data set, then the caller's."""
    config_class = algorithm_class(algorithm).config_class
    known = {kebab(name) for name in config_class.__dataclass_fields__}
    values: dict[str, Any] = dict(preset_settings(preset, data_name, known))
    values.update({kebab(name): value for name, value in settings.items()})
    return config_class.from_flat(values)
