"""The command line: a thin caller of the library."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

import fedrecgel
from fedrecgel.common.errors import ConfigError, FedRecError, Stopped

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns
    -------
    int
        0 when done, 2 for what a user can mend (one line on stderr), 130 after Ctrl-C.
    """
    try:
        words = sys.argv[1:] if argv is None else argv
        _refuse_bytes(words)
        parser = _parser()  # its imports take a second: Ctrl-C is heard from the first moment
        arguments = parser.parse_args(words)
        if not hasattr(arguments, "run"):
            parser.print_help()
            return 2
        code: int = arguments.run(arguments)
    except Stopped as error:
        print(error, file=sys.stderr)
        return INTERRUPTED
    except FedRecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        # A path that somebody gave, or one below it; nobody is helped by where we stumbled.
        print(f"error: cannot use {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return code


def _refuse_bytes(words: Sequence[str]) -> None:
    """Refuse bytes that are no text: no id has them, no file or message could hold them."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"the argument {word!r} is not UTF-8; give ids and paths in UTF-8"
            ) from None


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, as every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    from fedrecgel.cli import (
        ask,
        compare,
        data,
        demo,
        deploy,
        difference,
        evaluate,
        export,
        prepare,
        recommend,
        references,
        serve,
        simulate,
        store,
    )

    parser = _Parser(prog="fedrecgel", description="Federated recommendation on Flower.")
    parser.add_argument("--version", action="version", version=f"fedrecgel {fedrecgel.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (
        demo,
        data,
        prepare,
        references,
        simulate,
        recommend,
        export,
        evaluate,
        difference,
        compare,
        store,
        serve,
        ask,
        deploy,
    ):
        command.add_parser(commands)
    return parser


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
