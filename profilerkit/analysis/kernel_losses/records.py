"""What the kernels of the steady window waste: the records that rules read. Shares are of the steady time."""

import msgspec


class Alignment(msgspec.Struct, frozen=True):
    """16-bit matrix products of which a dimension is no multiple of eight elements.

    Attributes:
        share: time of their kernels.
        lost_share: of it, what is beyond the least time that their shapes allow on the device; ``None`` for a device
            whose peaks are not known.
        sizes: (M, N, K) of the call that loses most, or without peaks takes most.
        operator: that made it.
        calls_per_step: such calls.
        others_ratio: what the products of fitting sizes reach of their own least time; ``None`` where they take less
            than half as long together, so that they are no measure.
    """

    share: float
    lost_share: float | None
    sizes: tuple[int, int, int]
    operator: str
    calls_per_step: float
    others_ratio: float | None = None


class Grid(msgspec.Struct, frozen=True):
    """Math kernels of one name and grid.

    Attributes:
        kernel: name; hostile text.
        blocks_per_sm: blocks of the grid for each multiprocessor.
        share: their time.
        idle_share: of it, what the least occupied round leaves idle, but no more than what is beyond the least time
            that shapes allow.
        per_step: kernels.
    """

    kernel: str
    blocks_per_sm: float
    share: float
    idle_share: float
    per_step: float


class Scores(msgspec.Struct, frozen=True):
    """Attention that writes its scores to memory: products, softmax, mask and dropout over tensors of one shape.

    Attributes:
        queries: rows of a score matrix.
        keys: columns of it.
        matrices: score matrices in one tensor, batch times heads.
        share: time of all kernels that read or write them.
        pointwise_share: of it, all but the matrix products.
        peak_share: the least time of the products' arithmetic at the dense peak; ``None`` where it is not known.
    """

    queries: int
    keys: int
    matrices: int
    share: float
    pointwise_share: float
    peak_share: float | None


class DenseTables(msgspec.Struct, frozen=True):
    """Embedding tables with a dense gradient, of which a step looks up few rows.

    Attributes:
        count: how many.
        rows: of the one that takes most time.
        width: elements of each of its rows.
        looked_up: its rows that a step looks up, at most.
        share: time of what goes over whole tables: their gradients and the optimizer.
        unused_share: of it, what rows take that the step does not look up.
    """

    count: int
    rows: int
    width: int
    looked_up: float
    share: float
    unused_share: float


class OptimizerWork(msgspec.Struct, frozen=True):
    """What the optimizer steps put on the device.

    Attributes:
        name: class of the optimizer, empty where a range of the program marks it; hostile text.
        style: how it goes over its tensors: one at a time, by lists, or by one fused kernel; ``None`` where neither of
            torch's operators and kernels is seen.
        kernels_per_step: count.
        tensors: that one optimizer step changes; ``None`` unless it takes them one at a time, as is the next.
        kernels_per_tensor: kernels of an optimizer step for each of them.
        share: device time from the first to the last of its kernels, without communication in between.
        kernel_share: of it, time in which one of them runs.
        least_share: time to read and write parameters, gradients and state once; ``None`` without shapes or peaks.
        parameters: elements that it changes per step; ``None`` without shapes.
    """

    name: str
    style: str | None
    kernels_per_step: float
    tensors: float | None
    kernels_per_tensor: float | None
    share: float
    kernel_share: float
    least_share: float | None = None
    parameters: int | None = None


class Layout(msgspec.Struct, frozen=True):
    """Kernels that change the order of a convolution's dimensions; ``example`` is the one with most time.

    ``is_3d`` is whether a convolution goes over three dimensions; ``None`` where neither shapes nor names tell.
    """

    conversion_share: float
    convolution_share: float
    per_step: float
    example: str | None
    is_3d: bool | None = None


class Searches(msgspec.Struct, frozen=True):
    """Operators that time several algorithms for one call before they choose.

    Attributes:
        share: time of the searches, on host or device.
        per_step: searches.
        steps: judged steps in which one happens.
        trials: timings of the mean search.
        shapes: distinct inputs that were searched for; ``None`` without recorded shapes.
        operator: that searches most.
    """

    share: float
    per_step: float
    steps: int
    trials: float
    shapes: int | None
    operator: str


class KernelLosses(msgspec.Struct, frozen=True):
    """Everything above for one device; ``None`` where the trace cannot say, no entry where there is nothing.

    Attributes:
        has_shapes: whether any operator says what it was passed.
        multiprocessors: of the device.
        alignment: ``None`` where no product is misaligned.
        grids: largest time first, at most 64; ``None`` where no kernel says its grid.
        scores: largest time first.
        optimizer: ``None`` where no optimizer step is marked.
        layout: of the convolutions.
        searches: ``None`` where nothing is searched for.
        has_operators: whether the trace may hold operators, within which is searched.
        tables: ``None`` where no embedding gets a dense gradient of rows that are not looked up.
    """

    has_shapes: bool
    multiprocessors: int | None
    alignment: Alignment | None
    grids: tuple[Grid, ...] | None
    scores: tuple[Scores, ...]
    optimizer: OptimizerWork | None
    layout: Layout
    searches: Searches | None
    has_operators: bool = True
    tables: DenseTables | None = None
