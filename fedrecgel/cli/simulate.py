"""``fedrecgel simulate``: train and evaluate on this machine."""

import argparse
from typing import Any

from fedrecgel.cli.references import method_names
from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.config import kebab, setting_help
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.presets import PRESETS


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="train and evaluate on a prepared data set",
        description="Train and evaluate on a prepared data set, on this machine.",
        epilog=_settings_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="made by: fedrecgel prepare")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to make")
    parser.add_argument("--algorithm", help=f"{' | '.join(ALGORITHMS)} (default: fedrecgel)")
    parser.add_argument("--preset", choices=PRESETS, help="settings to start from (default: tuned)")
    parser.add_argument("--nodes", type=int, help="Flower nodes that share the users (default: 1)")
    parser.add_argument(
        "--backend",
        default="in-process",
        choices=("in-process", "ray"),
        help="what carries the messages: this process, or Flower's Ray simulation with a process "
        "for each core (default: in-process)",
    )
    parser.add_argument(
        "--ray-address",
        default="",
        metavar="HOST:PORT",
        help="a running Ray cluster for backend ray (default: $RAY_ADDRESS, else its own)",
    )
    add_settings(parser, "a setting; may be repeated")
    parser.add_argument("--overwrite", action="store_true", help="replace a run in RUN")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in RUN from its last checkpoint"
    )
    parser.add_argument(
        "--log",
        default="auto",
        choices=("auto", "bar", "text", "json", "none"),
        help="what to show on stderr while it runs: auto is a bar on a terminal, else text, a line "
        "per round (default: auto)",
    )
    parser.add_argument(
        "--references",
        nargs="?",
        const=[],
        type=method_names,
        metavar="NAME,...",
        help="show central methods beside the model: item-knn, ease, als, recent (default: these), "
        "mf, neumf, local-only",
    )
    parser.add_argument(
        "--json", action="store_true", help="print result.json instead of the table"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.run import simulate

    result = simulate(
        arguments.data,
        arguments.out,
        algorithm=arguments.algorithm,
        preset=arguments.preset,
        nodes=arguments.nodes,
        backend=arguments.backend,
        ray_address=arguments.ray_address,
        overwrite=arguments.overwrite,
        resume=arguments.resume,
        log=arguments.log,
        references=arguments.references,
        **parse_settings(arguments),
    )
    if arguments.json:
        print_json(result.values)
    else:
        print(result.table())
        print(f"\nrun folder: {result.path} (result.json, metrics.jsonl, curves.png)")
    return 0


def add_settings(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the arguments that `parse_settings` reads; ``about`` is the help of ``--set``."""
    for name, kind in (("rounds", int), ("seed", int), ("dtype", str)):
        parser.add_argument(f"--{name}", type=kind, help=f"same as --set {name}=...")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=about)


def parse_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings of the arguments; naming one twice is an error."""
    settings: dict[str, Any] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set needs NAME=VALUE, not '{text}', e.g. --set server-lr=0.01")
        if kebab(name) in settings:
            raise ConfigError(f"setting '{kebab(name)}' is given twice")
        settings[kebab(name)] = value
    for name in ("rounds", "seed", "dtype"):
        value = getattr(arguments, name)
        if value is not None:
            if name in settings:
                raise ConfigError(f"setting '{name}' is given twice")
            settings[name] = value
    return settings


def _settings_text() -> str:
    """All settings: those that every algorithm has alike, then each algorithm's own."""
    rows = {name: setting_help(ALGORITHMS[name].config_class) for name in ALGORITHMS}
    common = [row for row in rows["fedrecgel"] if all(row in other for other in rows.values())]
    lines = ["settings (--set NAME=VALUE), with the defaults of preset paper (fedncf: one-step):"]
    lines += [_setting_line(*row) for row in common]
    for name, own in rows.items():
        lines += ["", f"of {name}:"]
        lines += [_setting_line(*row) for row in own if row not in common]
    return "\n".join(lines)


def _setting_line(name: str, default: object, text: str) -> str:
    return f"  {name:<22} {text} [{default}]"
