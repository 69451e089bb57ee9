"""A SuperExec whose client apps start warm: forked from a process that has imported torch already.

Usage: ``python -P warm.py`` with the arguments of ``flower-superexec``.

Flower starts a process for each message. Nearly all that such a process costs is importing Flower
and torch: three seconds of a core, many times what a site's training takes. Here a template imports
both once; for a message it forks a child, which then does what ``flwr-clientapp`` does. A message
still has a process of its own, in which nothing is left of earlier ones or of the SuperExec: the
template begins before any secret is read, and never loads an app.

This file must not import fedrecgel: the app's code comes with the run, and a child would find the
installed code in its place. What cannot start this way starts in Flower's own.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

COMMAND = "flwr-clientapp"
"""What is started warm, by the name that Flower starts it by."""

MODULES = ("torch", "safetensors.torch", "pyarrow.parquet")
"""What the app imports and takes long to load, besides Flower."""


class Starter:
    """Stands in for the module `subprocess` where Flower starts processes."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self, template: TextIO) -> None:
        self._template = template

    def Popen(self, command: Sequence[str], **options: Any) -> object:  # noqa: ANN401
        """Start ``command``: warm, if it is a client app and the template is there."""
        if command[0] == COMMAND and not options:
            try:
                self._template.write(json.dumps(list(command)) + "\n")
                self._template.flush()
            except OSError:
                print(f"the template of {COMMAND} is gone; starting slowly", file=sys.stderr)
            else:
                return None
        return subprocess.Popen(command, **options)


def start_template() -> TextIO:
    """Fork the template; each line that is written to the result starts a client app.

    It ends when the result is closed, in whatever way this process ends.
    """
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours.makefile("w", encoding="utf-8")
    ours.close()
    serve(theirs.makefile("r", encoding="utf-8"))


def serve(commands: TextIO) -> NoReturn:
    """Import what takes long, then fork a child for each command until there are no more."""
    from flwr.supernode.cli import flwr_clientapp

    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # The children are forgotten by the system when they end, and share what is here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    for line in commands:
        if os.fork() == 0:
            commands.close()
            _become(json.loads(line))
            sys.exit(flwr_clientapp())  # type: ignore[func-returns-value]
    sys.exit(0)


def _become(command: list[str]) -> None:
    """Be as if this process had been started by ``command``."""
    sys.argv = command
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write(COMMAND)


def main() -> None:
    """Start the template, and become a SuperExec."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    # A plain attribute of a module of Flower's own: tests look for it in each Flower we support.
    vars(subprocess_executor)["subprocess"] = Starter(start_template())
    flower_superexec()


if __name__ == "__main__":
    main()
