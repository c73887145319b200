"""Times and sizes as records hold them: what lies beyond is damage, and would overflow in int64 arithmetic."""

from typing import Annotated

import msgspec

#: ns of either clock, within 73 years of its zero: a few of them add up to less than 2^63.
TimeNs = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]
#: Bytes of a memory: no host has 2^60, and differences of a few fit into 2^63.
SizeBytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
