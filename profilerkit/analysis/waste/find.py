"""All that the kernels of one device waste."""

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.kernel_losses.records import Waste
from profilerkit.analysis.kernel_losses.shapes import Judged, grids, layout, misaligned, searches
from profilerkit.analysis.waste.embeddings import dense_tables
from profilerkit.analysis.waste.optimizer import optimizer_work
from profilerkit.analysis.waste.scores import scores
from profilerkit.trace.columns import DeviceProperties


def kernel_waste(work: Judged, optimizer_step: I64, properties: DeviceProperties | None) -> Waste:
    """What the judged kernels of a device waste.

    Args:
        work: the judged kernels.
        optimizer_step: ``(n,)`` row of the optimizer step that launched each, -1 for none.
        properties: of the device.
    """
    return Waste(
        has_shapes=bool((work.columns.input_dims >= 0).any()),
        has_peaks=work.roof.spec is not None,
        multiprocessors=properties.multiprocessors if properties else None,
        alignment=misaligned(work),
        grids=grids(work),
        scores=scores(work),
        optimizer=optimizer_work(work, optimizer_step),
        layout=layout(work),
        searches=searches(work),
        tables=dense_tables(
            work.columns, work.kinds.math, work.issuing, work.operator, work.dur_ns, work.window.total_ns
        ),
        has_operators=work.columns.meta.no_operators is None,
    )
