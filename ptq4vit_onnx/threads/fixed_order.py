"""Operations of a network whose sums have the same order on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ptq4vit_onnx.threads.side_by_side import MOST, on_one_thread, worker_count, workers_of

_aten = torch.ops.aten
SMALL = 1 << 24  # multiply-adds that a piece of a product has at least: a third of a millisecond
NARROW = 32  # rows that a piece of a matrix product has at least


@contextmanager
def fixed_order() -> Iterator[None]:
    """While it is open, an operation runs on one thread, forwards and backwards. The large ones of a transformer are
    cut into pieces along their rows, heads or images, as their shapes alone say, and the pieces share out torch's
    threads."""
    workers = worker_count()
    with on_one_thread(), workers_of(workers) if workers > 1 else nullcontext() as pool, _InPieces(pool):
        yield


class _InPieces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation below autograd, so those of gradients as well."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.map: Callable[..., Any] = map if pool is None else pool.map

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not kwargs:
            if func in (_aten.mm.default, _aten.bmm.default):
                return self._product(func, (), *args)
            if func is _aten.addmm.default:
                return self._product(func, args[:1], *args[1:])
            if func is _aten.convolution.default:
                return self._by_image(func, args[:1], args[1:])
            if func is _aten.convolution_backward.default and list(args[-1]) == [True, False, False]:
                return self._by_image(lambda *each: func(*each)[0], args[:2], args[2:]), None, None
        return func(*args, **kwargs or {})

    def _product(self, func: Any, bias: tuple[Any, ...], lhs: Tensor, rhs: Tensor) -> Tensor:
        """[n, K] @ [K, M] by rows, [b, n, K] @ [b, K, M] by entries. bias: [M], added to the product."""
        rows, is_matrix = len(lhs), lhs.dim() == 2
        most = min(MOST, lhs.numel() * rhs.shape[-1] // SMALL, rows // NARROW if is_matrix else rows)
        if most < 2 or (bias and bias[0].dim() != 1):
            return func(*bias, lhs, rhs)  # type: ignore[no-any-return]
        out = lhs.new_empty(*lhs.shape[:-1], rhs.shape[-1])
        into = func.overloadpacket.out

        @torch.no_grad()  # a setting of each thread by itself
        def one(lhs: Tensor, rhs: Tensor, out: Tensor) -> None:
            into(*bias, lhs, rhs, out=out)

        others = [rhs] * most if is_matrix else rhs.tensor_split(most)
        list(self.map(one, lhs.tensor_split(most), others, out.tensor_split(most)))
        return out

    def _by_image(self, operation: Callable[..., Tensor], each: Sequence[Tensor], rest: Sequence[Any]) -> Tensor:
        """each: tensors with an axis of images in front."""

        @torch.no_grad()
        def one(*piece: Tensor) -> Tensor:
            return operation(*piece, *rest)

        return torch.cat(list(self.map(one, *(x.tensor_split(len(x)) for x in each))))
