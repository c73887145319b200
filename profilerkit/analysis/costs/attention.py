"""Fused attention: two products over all pairs of positions forward, five backward; half the pairs if causal."""

from functools import partial

import msgspec

from profilerkit.analysis.costs.arguments import Arguments
from profilerkit.analysis.costs.cost import Cost, Model

#: Matrix products backward / forward: the scores again, and two gradients for each of the two products.
_BACKWARD = 2.5
#: Values of ``custom_mask_type`` of the memory-efficient kernel: none, causal from the top left, from the bottom right.
_MASK_TYPES = {"0": False, "1": True, "2": True}


class _Layout(msgspec.Struct, frozen=True):
    """Where an operator takes what.

    Attributes:
        query: position of the query; key and value follow it.
        causal: position of the flag, or of the type of mask.
        heads_second: tensors are (batch, heads, positions, size); else (batch, positions, heads, size).
    """

    query: int
    causal: int
    heads_second: bool = False

    @property
    def backward(self) -> bool:
        """A backward operator takes the gradient first."""
        return self.query == 1


def _attention(passed: Arguments, layout: _Layout) -> Cost | None:
    """4·B·H·S·S·D forward for equal sizes, x 2.5 backward.

    Sequences packed into one (positions, heads, size) tensor are not counted: their lengths are not recorded. Neither
    is a call of which it is not known whether it is causal.
    """
    q, k, v = (passed.tensor(layout.query + offset) for offset in range(3))
    if q is None or k is None or v is None or not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        return None
    flag = passed.value(layout.causal)
    causal = passed.flag(layout.causal) if flag not in _MASK_TYPES else _MASK_TYPES[flag]
    if causal is None:
        return None
    heads, positions = (1, 2) if layout.heads_second else (2, 1)
    pairs = q.shape[0] * q.shape[heads] * q.shape[positions] * k.shape[positions]
    # With fewer queries than keys (a cache) a causal mask hides little: only the square part is halved.
    hidden = min(q.shape[positions], k.shape[positions]) / max(k.shape[positions], 1) / 2 if causal else 0.0
    flops = 2 * pairs * (q.shape[3] + v.shape[3]) * (1 - hidden)
    out = q.elements // max(q.shape[3], 1) * v.shape[3]
    read = q.elements + k.elements + v.elements
    # Backward reads the output and its gradient too and writes three gradients.
    moved = (2 * read + 2 * out) if layout.backward else read + out
    return Cost(
        family="attention",
        bytes=moved * (q.item_bytes or 0),
        flops=round(flops * (_BACKWARD if layout.backward else 1)),
        dtype=q.dtype,
    )


_LAYOUTS = {
    "aten::_flash_attention_forward": _Layout(0, causal=8),
    "aten::_flash_attention_backward": _Layout(1, causal=11),
    "aten::_efficient_attention_forward": _Layout(0, causal=9),
    "aten::_efficient_attention_backward": _Layout(1, causal=14),
    "aten::_scaled_dot_product_cudnn_attention": _Layout(0, causal=6, heads_second=True),
    "aten::_cudnn_attention_forward": _Layout(0, causal=10, heads_second=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Layout(1, causal=14, heads_second=True),
    "aten::_cudnn_attention_backward": _Layout(1, causal=14, heads_second=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Layout(0, causal=4, heads_second=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Layout(1, causal=7, heads_second=True),
    "flash_attn::_flash_attn_forward": _Layout(0, causal=5),
    "flash_attn::_flash_attn_backward": _Layout(1, causal=11),
}

ATTENTION: dict[str, Model] = {name: partial(_attention, layout=layout) for name, layout in _LAYOUTS.items()}
