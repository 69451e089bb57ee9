"""The errors and warnings of fedrecgel.

Everything that a user, a file, a message or a node can cause is one of these::

    FedRecError
    +-- ConfigError       a setting: unknown name, wrong type, out of range, impossible combination
        +-- TooLargeError  a run that would need more memory, disk or larger messages than may be
    +-- DataError         an interaction file or a prepared data set
    +-- RunError          a run folder or private store: missing, damaged, of something else, in use
    +-- DeployError       a deployment: certificates, keys, processes that do not start or answer
    +-- Stopped           a run that somebody asked to stop; it is saved and can be resumed
    +-- FederationError   nodes, messages and rounds: nobody answers, too few good replies
        +-- ReplyError    one reply that cannot be accepted (counted; the round goes on)

Each carries one line: what is wrong, where, and what to do. The command line prints that line and
exits with code 2, as it does for an ``OSError`` that names a file. Anything else that escapes is a
defect of ours and keeps its traceback.
"""


class FedRecError(Exception):
    """Root of all errors that fedrecgel raises on purpose."""


class ConfigError(FedRecError):
    """A setting is unknown, of the wrong type, out of range or contradicts another."""


class TooLargeError(ConfigError):
    """A run would need more memory or disk, or larger messages, than there are or than it may."""


class DataError(FedRecError):
    """An interaction file or a prepared data set cannot be used as it is."""


class RunError(FedRecError):
    """A run folder, checkpoint or store is missing, damaged, in use, or of something else."""


class DeployError(FedRecError):
    """A deployment's certificates, keys, files or processes are missing or do not work."""


class Stopped(FedRecError):
    """The run was asked to stop and did, after its round was saved."""

    def __init__(self, round: int) -> None:
        super().__init__(f"stopped after round {round}, which is saved; go on with --resume")
        self.round = round


class FederationError(FedRecError):
    """The federation cannot go on: no nodes, or too few usable replies."""


class ReplyError(FederationError):
    """One node's reply cannot be accepted."""


class DataWarning(UserWarning):
    """Data are usable but suspicious."""
