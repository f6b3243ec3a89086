"""Computations side by side: in order, on all threads, and leaving torch's own threads as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from ptq4vit_onnx.threads.side_by_side import side_by_side


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_that_torch_does_not_split() -> None:
    torch.set_num_threads(2)
    met = threading.Barrier(2, timeout=20)

    def work(item: int) -> tuple[int, int, int]:
        met.wait()  # passes only if two are at work at once
        return item * item, torch.get_num_threads(), threading.get_ident()

    results = side_by_side(work, range(6))
    assert [square for square, _, _ in results] == [0, 1, 4, 9, 16, 25]
    assert {threads for _, threads, _ in results} == {1}
    assert threading.get_ident() not in {ident for _, _, ident in results}


def test_torch_keeps_its_threads_here_and_in_threads_that_come_later() -> None:
    torch.set_num_threads(2)
    side_by_side(abs, range(4))
    seen: list[int] = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert torch.get_num_threads() == 2 and seen == [2]


def test_with_one_thread_nothing_is_started() -> None:
    torch.set_num_threads(1)
    assert side_by_side(lambda _: threading.get_ident(), range(3)) == [threading.get_ident()] * 3


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_reaches_the_caller(threads: int) -> None:
    torch.set_num_threads(threads)
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda item: 1 // item, [1, 0])
    assert torch.get_num_threads() == threads
