"""Jobs of several ranks with known answers: who arrives when, what each does before, and what the captures miss."""

from tests.recipes import ALL_REDUCE, Trace

#: What a rank does longer, as the recipe's word and the leaf it must be booked on.
ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def job(
    ranks=4,
    steps=10,
    *,
    compute=1_000,
    python=None,
    kernels=None,
    transfer=200,
    per_step=1,
    clock=None,
    missing=None,
    period=None,
    group=None,
    numbered=False,
    elements=1 << 20,
    name=ALL_REDUCE,
    start=10_000,
    members=None,
    world_size=None,
    base_time_ns=None,
    leave=None,
):
    """One trace per rank of a job whose every step computes and then runs ``per_step`` collectives, times in µs.

    Everybody leaves a collective together, ``transfer`` after the last one came.

    Args:
        python: ``f(rank, step, index)`` µs of Python before each collective.
        kernels: ``f(rank, step, index)`` µs of more computation before it.
        clock: per rank µs by which its clock is ahead.
        missing: per rank how many collectives its capture lacks at the beginning.
        period: least length of a step.
        group: ``f(rank)`` name of the process group; ``None`` for traces without metadata of groups.
        numbered: whether the metadata has sequence numbers.
        elements: ``f(step, index)`` or a number; ``None`` for no metadata at all.
        name: of the kernels, ``f(step, index)`` or a text.
        members: ``f(rank)`` the ranks that take part in this rank's collectives; all unless given.
        base_time_ns: per rank what its clock counts from.
        leave: ``f(rank, step, index)`` µs by which it leaves after the others.
    """
    zero = lambda *_: 0  # noqa: E731 - a recipe
    python, kernels, leave = python or zero, kernels or zero, leave or zero
    clock, missing = clock or [0] * ranks, missing or [0] * ranks
    traces = []
    for rank in range(ranks):
        fields = {} if base_time_ns is None else {"baseTimeNanoseconds": base_time_ns[rank]}
        traces.append(Trace(rank=rank, world_size=world_size or ranks, **fields))
    at = [start] * ranks
    count = 0
    for step in range(steps):
        began = list(at)
        for index in range(per_step):
            ready = []
            for rank in range(ranks):
                host = at[rank] + python(rank, step, index)
                shift = clock[rank]
                length = compute + kernels(rank, step, index)
                traces[rank].op(host + shift, host + 8 + shift, name="aten::linear")
                traces[rank].kernel(
                    host + 10 + shift, host + 10 + length + shift, launch=(host + 2 + shift, host + 8 + shift)
                )
                ready.append(host + 10 + length)
            for rank in range(ranks):
                own = members(rank) if members else range(ranks)
                end = max(ready[other] for other in own) + transfer + leave(rank, step, index)
                if count >= missing[rank]:
                    args = {}
                    size = elements(step, index) if callable(elements) else elements
                    if group is not None:
                        args["Process Group Name"] = group(rank)
                    if numbered:
                        args["Seq"] = 100 + count
                    if size is not None:
                        args["Group size"] = len(list(own))
                    shift = clock[rank]
                    own_name = name(step, index) if callable(name) else name
                    traces[rank].collective(ready[rank] + shift, end + shift, name=own_name, elements=size, **args)
                at[rank] = end
            count += 1
        if period:
            at = [max(time, begin + period) for time, begin in zip(at, began, strict=True)]
        for rank in range(ranks):
            traces[rank].step(step, began[rank] + clock[rank], at[rank] + clock[rank])
    return traces


def late(rank, us):
    """Python of ``us`` µs on one rank in every step."""
    return lambda own, *_: us if own == rank else 0
