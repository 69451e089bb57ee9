"""Settings: one typed, flat namespace with the same names everywhere.

A setting is a field of a frozen dataclass. Its name is ``snake_case`` in Python and ``kebab-case``
on the command line (``--set local-lr=0.1``), in Flower's run-config and in files; `kebab` is the
only place that maps one to the other. `Config` holds what every algorithm has; an algorithm's file
extends it with its own. An unknown name or a value of the wrong type is an error that says what
would do.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, cast

from fedrecgel.common.errors import ConfigError

Scalar = bool | int | float | str
FEW = 6
"""So many choices are not listed one by one any more."""


def setting(
    default: Any,  # noqa: ANN401 - a field of any scalar type
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:  # noqa: ANN401 - dataclasses.field is typed like this too
    """Declare one setting: default, one line of help, closed range or choices."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def kebab(name: str) -> str:
    """Name of a setting outside Python: ``local_lr`` becomes ``local-lr``."""
    return name.replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of every algorithm; see `setting_help` for the text of each.

    Raises
    ------
    ConfigError
        When a value is of the wrong type, out of range or not among the choices.
    """

    algorithm: ClassVar[str] = ""

    rounds: int = setting(100, "rounds of training", low=1)
    fraction: float = setting(0.1, "share of all users chosen in a round", low=1e-9, high=1)
    seed: int = setting(0, "seed of everything random", low=0, high=2**31 - 1)
    num_negatives: int = setting(
        4, "negatives drawn for each positive, anew each round", low=0, high=1000
    )
    negatives: str = setting(
        "clean",
        "clean: drawn from all a user did not train on; leaky: never the user's held-out items, as "
        "some published code does, to reproduce its numbers",
        choices=("clean", "leaky"),
    )
    dtype: str = setting("float32", "number format", choices=("float32", "float64"))
    evaluate_every: int = setting(5, "rounds between two evaluations on validation", low=1)
    select_by: str = setting(
        "sampled.ndcg@10",
        "validation metric that chooses the round: sampled or full, hr or ndcg, at 5, 10, 15, 20",
        choices=tuple(
            f"{ranking}.{metric}@{k}"
            for ranking in ("sampled", "full")
            for metric in ("hr", "ndcg")
            for k in (5, 10, 15, 20)
        ),
    )
    engine: str = setting(
        "block",
        "users in blocks, or one at a time (the plain reference)",
        choices=("block", "loop"),
    )
    block_size: int = setting(0, "samples computed at once; 0 = chosen by the scorer", low=0)
    device: str = setting("cpu", "where clients compute: cpu, cuda or auto")
    round_timeout: float = setting(3600.0, "seconds to wait for the replies of a round", low=0.001)
    patience: int = setting(
        0, "evaluations without a better validation metric before training stops; 0 = never", low=0
    )
    norm_limit: float = setting(
        100.0,
        "a reply is refused if its norm is this many times the median of those accepted; 0 = off",
        low=0,
    )
    upload: str = setting(
        "rows",
        "rows: a node sends the item rows that its users touched; dense: all rows, most of them "
        "zero, so that a message's size tells nothing",
        choices=("rows", "dense"),
    )
    server_sees: str = setting(
        "individual",
        "sum: an algorithm that needs each user's own update is refused",
        choices=("individual", "sum"),
    )
    memory_limit: float = setting(
        4.0, "gigabytes that the server may keep for all users together, else it is refused", low=0
    )
    min_replies: float = setting(
        0.5,
        "share of a round's users that must be accepted, else it is tried again with others",
        low=0,
        high=1,
    )

    @property
    def unused(self) -> tuple[str, ...]:
        """Fields that mean nothing under the others, and are refused where they are set."""
        return ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = _checked(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Build from kebab-case (or snake_case) names; strings are parsed to the field's type."""
        known = {kebab(field.name): field.name for field in fields(cls)}
        arguments = {}
        for name, value in values.items():
            if kebab(name) not in known:
                raise ConfigError(_unknown(name, cls, list(known)))
            arguments[known[kebab(name)]] = value
        return cls(**arguments)

    def to_flat(self) -> dict[str, Scalar]:
        """All settings by kebab-case name, as plain scalars."""
        return {kebab(field.name): getattr(self, field.name) for field in fields(self)}

    def replace(self, **changes: Scalar) -> Self:
        """Copy with some settings changed."""
        return self.from_flat({**self.to_flat(), **changes})


def setting_help(cls: type[Config]) -> list[tuple[str, Scalar, str]]:
    """``(name, default, help)`` of every setting, for ``--help`` and the reference page."""
    rows = []
    for field in fields(cls):
        _refuse_bare(field)
        text = str(field.metadata["help"])
        choices = field.metadata["choices"]
        if choices and len(choices) < FEW:
            text += f" ({' | '.join(choices)})"
        rows.append((kebab(field.name), cast(Scalar, field.default), text))
    return rows


def _unknown(name: str, cls: type[Config], known: list[str]) -> str:
    hint = nearest(kebab(name), known, "all of them: fedrecgel simulate --help")
    return f"unknown setting '{name}' for {cls.algorithm or 'fedrecgel'}; {hint}"


def nearest(text: str, known: Sequence[str], otherwise: str) -> str:
    """Ask whether one of up to three names like a text is meant, or say what else to do."""
    near = [f"'{name}'" for name in difflib.get_close_matches(text, known, n=3, cutoff=0.5)]
    if not near:
        return otherwise
    return f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}?"


def checked(cls: type[Config], name: str, value: Any) -> Scalar:  # noqa: ANN401
    """A value as the setting of that name would have it, whatever the others are.

    Raises
    ------
    ConfigError
        When it cannot have it.
    """
    return _checked(next(f for f in fields(cls) if kebab(f.name) == kebab(name)), value)


def _refuse_bare(field: "dataclasses.Field[Any]") -> None:
    if "help" not in field.metadata:
        raise ConfigError(
            f"setting '{kebab(field.name)}' is not made by fedrecgel.common.config.setting(...)"
        )


def _checked(field: "dataclasses.Field[Any]", value: Any) -> Scalar:  # noqa: ANN401
    name, wanted = kebab(field.name), type(field.default)
    _refuse_bare(field)
    parsed = _parsed(name, wanted, value)
    low, high, choices = (field.metadata[key] for key in ("low", "high", "choices"))
    if choices is not None and parsed not in choices:
        every = f"choose from {', '.join(choices)}"
        hint = every if len(choices) < FEW else nearest(str(parsed), choices, every)
        raise ConfigError(f"setting '{name}' cannot be '{parsed}'; {hint}")
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise ConfigError(f"setting '{name}' must be a finite number, not {parsed}")
    if (low is not None and cast(float, parsed) < low) or (
        high is not None and cast(float, parsed) > high
    ):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"setting '{name}' must be {bounds}, not {parsed}")
    return parsed


def _parsed(name: str, wanted: type, value: Any) -> Scalar:  # noqa: ANN401
    error = ConfigError(f"setting '{name}' needs a value of type {wanted.__name__}, not {value!r}")
    if isinstance(value, str) and wanted is not str:
        text = value.strip().lower()
        if wanted is bool and text in ("true", "false"):
            return text == "true"
        try:
            return cast(Scalar, wanted(text)) if wanted is not bool else _raise(error)
        except ValueError:
            raise error from None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not wanted:
        raise error
    return cast(Scalar, value)


def _raise(error: Exception) -> Scalar:
    raise error
