"""A small client of the service: what ``fedrecgel ask`` calls, and an example for others."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from fedrecgel.common.errors import ConfigError, FedRecError
from fedrecgel.serve.pem import read_authority, read_pair
from fedrecgel.serve.recommender_pb2 import RecommendRequest, ScoredItem, ScoreRequest, Source
from fedrecgel.serve.recommender_pb2_grpc import RecommenderStub

TIMEOUT = 10.0
"""Seconds to wait for an answer."""
_LARGEST = 2**31 - 1
"""Number in a field of a request."""


class Unreachable(FedRecError):
    """Nobody answered: no server there, or one that will not talk to this client."""


class Client:
    """A connection to a server.

    Parameters
    ----------
    address
        ``host:port`` or ``unix:PATH``.
    ca
        PEM file of the authority that certified the server; None: no TLS.
    pair
        PEM files of this client's certificate and key, where the server asks for one.

    Raises
    ------
    ConfigError
        When a file of a certificate or key will not do.
    ConfigError
        From a call whose request no message can hold.
    FedRecError
        From every call that fails, with the server's line; `Unreachable` where there is none.
    """

    def __init__(
        self, address: str, ca: Path | None = None, pair: tuple[Path, Path] | None = None
    ) -> None:
        self._address = address
        if ca is None:
            self._channel = grpc.insecure_channel(address)
        else:
            key, cert = (None, None) if pair is None else read_pair(*pair)
            credentials = grpc.ssl_channel_credentials(read_authority(ca), key, cert)
            self._channel = grpc.secure_channel(address, credentials)
        self._stub = RecommenderStub(self._channel)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def recommend(
        self, user: str, k: int = 10, *, exclude: Sequence[str] = (), repeat: bool = False
    ) -> dict[str, Any]:
        """``items`` (best first), ``source``, and the model that answered."""
        if isinstance(k, int) and abs(k) > _LARGEST:
            raise ConfigError(f"k must be from 1 to {_LARGEST}, not {k}")
        request = _message(RecommendRequest, user=user, k=k, exclude=exclude, repeat=repeat)
        return self._plain(self._stub.Recommend, request)

    def score(self, user: str, items: Sequence[str]) -> dict[str, Any]:
        """The same of given items, in their order."""
        return self._plain(self._stub.Score, _message(ScoreRequest, user=user, items=items))

    def _plain(self, call: Any, request: Any) -> dict[str, Any]:  # noqa: ANN401 - gRPC has no types
        try:
            reply = call(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        return {
            "source": Source.Name(reply.source).removeprefix("SOURCE_").lower(),
            "model": {
                "experiment": reply.model.experiment,
                "algorithm": reply.model.algorithm,
                "round": reply.model.round,
            },
            "items": [_item(item) for item in reply.items],
        }

    def _failure(self, error: Any) -> FedRecError:  # noqa: ANN401
        code, details = error.code(), " ".join(str(error.details()).split())
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unreachable(f"{self._address}: no answer in {TIMEOUT:.0f} seconds")
        if code is grpc.StatusCode.UNAVAILABLE:
            return Unreachable(f"{self._address}: no answer ({details}); is the server there?")
        return FedRecError(f"{self._address}: {details} ({code.name})")


def _message(kind: Any, **fields: object) -> Any:  # noqa: ANN401 - protobuf has many kinds
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the request cannot be sent: {' '.join(str(error).split())}") from None


def _item(item: ScoredItem) -> dict[str, Any]:
    return {"item": item.item, "score": item.score, "estimated": item.estimated}
