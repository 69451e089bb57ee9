"""The service's two calls: requests checked, answers in the protocol's words.

What a caller can mend is a status with one line: NOT_FOUND for an unknown item, INVALID_ARGUMENT
for a wrong value, FAILED_PRECONDITION where nothing can be answered yet. User ids stand in no
message and no log.
"""

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

import grpc

from fedrecgel.common.errors import ConfigError, DataError, FedRecError
from fedrecgel.serve.current import Current
from fedrecgel.serve.model import Answer, Model, Source
from fedrecgel.serve.recommender_pb2 import (
    SOURCE_FITTED,
    SOURCE_KEPT,
    SOURCE_POPULARITY,
    ModelInfo,
    RecommendReply,
    RecommendRequest,
    ScoredItem,
    ScoreReply,
    ScoreRequest,
)
from fedrecgel.serve.recommender_pb2_grpc import RecommenderServicer

DEFAULT_K, MOST_K, MOST_ITEMS = 10, 1_000, 10_000

SOURCES = {
    Source.KEPT: SOURCE_KEPT,
    Source.FITTED: SOURCE_FITTED,
    Source.POPULARITY: SOURCE_POPULARITY,
}
STATUS = {
    DataError: grpc.StatusCode.NOT_FOUND,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
}


def answered(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turn our errors into statuses, and a defect into a note of where it happened."""

    @functools.wraps(call)
    def answer(self: "Service", request: Any, context: grpc.ServicerContext) -> Any:  # noqa: ANN401
        try:
            return call(self, request)
        except FedRecError as error:
            code, text = STATUS.get(type(error), grpc.StatusCode.FAILED_PRECONDITION), str(error)
        except Exception as error:
            # Without its text, which may hold what the caller sent.
            print(f"defect: {type(error).__name__}", file=sys.stderr)
            traceback.print_tb(error.__traceback__)
            code, text = grpc.StatusCode.INTERNAL, f"a defect of the server: {type(error).__name__}"
        context.abort(code, text)

    return answer


class Service(RecommenderServicer):
    """`fedrecgel.v1.Recommender` over whichever model is current."""

    def __init__(self, current: Current) -> None:
        self._current = current

    @answered
    def Recommend(self, request: RecommendRequest) -> RecommendReply:
        """The best items for a user."""
        _check_user(request.user)
        k = request.k if request.HasField("k") else DEFAULT_K
        if not 1 <= k <= MOST_K:
            raise ConfigError(f"k must be between 1 and {MOST_K:,}, not {k}")
        model = self._current.model()
        answer = model.recommend(request.user, k, request.exclude, repeat=request.repeat)
        return RecommendReply(**_fields(answer, model))

    @answered
    def Score(self, request: ScoreRequest) -> ScoreReply:
        """Scores of items for a user."""
        _check_user(request.user)
        if not 1 <= len(request.items) <= MOST_ITEMS:
            raise ConfigError(f"give 1 to {MOST_ITEMS:,} items, not {len(request.items)}")
        model = self._current.model()
        return ScoreReply(**_fields(model.score(request.user, request.items), model))


def _check_user(user: str) -> None:
    if not user:
        raise ConfigError("the request names no user")


def _fields(answer: Answer, model: Model) -> dict[str, Any]:
    experiment = model.published.experiment
    info = ModelInfo(
        experiment=experiment.id, algorithm=experiment.algorithm, round=model.published.round
    )
    items = [ScoredItem(**vars(item)) for item in answer.items]
    return {"items": items, "source": SOURCES[answer.source], "model": info}
