import threading
import time

from fedrecgel.serve.priority import LONGEST, Priority


def test_long_work_waits_for_answers_but_not_for_ever() -> None:
    priority, began = Priority(), time.monotonic()
    with priority.answering():
        priority.let_pass()
    assert time.monotonic() - began >= LONGEST


def test_it_goes_on_as_soon_as_nobody_is_answered() -> None:
    priority, order = Priority(), []
    with priority.answering():
        work = threading.Thread(target=lambda: (priority.let_pass(), order.append("work")))
        work.start()
        order.append("answer")
    work.join()
    assert order == ["answer", "work"]
    priority.let_pass()
