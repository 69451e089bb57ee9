from fedrecgel.serve.bounded import Bounded


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    cache: Bounded[str] = Bounded(2)
    cache.put(1, "a")
    cache.put(2, "b")
    assert cache.get(1) == "a"
    cache.put(3, "c")
    assert [cache.get(key) for key in (1, 2, 3)] == ["a", None, "c"]
    assert len(cache) == 2
