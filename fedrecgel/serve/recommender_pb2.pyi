from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[Source]
    SOURCE_KEPT: _ClassVar[Source]
    SOURCE_FITTED: _ClassVar[Source]
    SOURCE_POPULARITY: _ClassVar[Source]
SOURCE_UNSPECIFIED: Source
SOURCE_KEPT: Source
SOURCE_FITTED: Source
SOURCE_POPULARITY: Source

class RecommendRequest(_message.Message):
    __slots__ = ("user", "k", "exclude", "repeat")
    USER_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    user: str
    k: int
    exclude: _containers.RepeatedScalarFieldContainer[str]
    repeat: bool
    def __init__(self, user: _Optional[str] = ..., k: _Optional[int] = ..., exclude: _Optional[_Iterable[str]] = ..., repeat: _Optional[bool] = ...) -> None: ...

class RecommendReply(_message.Message):
    __slots__ = ("items", "source", "model")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ScoredItem]
    source: Source
    model: ModelInfo
    def __init__(self, items: _Optional[_Iterable[_Union[ScoredItem, _Mapping]]] = ..., source: _Optional[_Union[Source, str]] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("user", "items")
    USER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    user: str
    items: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, user: _Optional[str] = ..., items: _Optional[_Iterable[str]] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("items", "source", "model")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ScoredItem]
    source: Source
    model: ModelInfo
    def __init__(self, items: _Optional[_Iterable[_Union[ScoredItem, _Mapping]]] = ..., source: _Optional[_Union[Source, str]] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ...) -> None: ...

class ScoredItem(_message.Message):
    __slots__ = ("item", "score", "estimated")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    item: str
    score: float
    estimated: bool
    def __init__(self, item: _Optional[str] = ..., score: _Optional[float] = ..., estimated: _Optional[bool] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("experiment", "algorithm", "round")
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    experiment: str
    algorithm: str
    round: int
    def __init__(self, experiment: _Optional[str] = ..., algorithm: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...
