"""What a program did before its recording, as ``meta.json`` holds it."""

import msgspec

from profilerkit.rundir.times import TimeNs


class StartUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a program under ``profilerkit run`` did before its recording; instants by ``perf_counter_ns``.

    Attributes:
        python_end_ns: when Python itself had started.
        imports: start and end of the main thread's imports, none in another one.
        packages: of the packages that took most, what their own modules took, ns.
        model: from the first parameter of a module to the last; ``None`` where there was none.
        loader_ns: when the first DataLoader was made; ``None`` without one.
        device: start and end of CUDA's initialisation; ``None`` where that was not seen.
        own: start and end of what capture itself imported; ``None`` where that is not known.
    """

    python_end_ns: TimeNs
    imports: tuple[tuple[TimeNs, TimeNs], ...] = ()
    packages: dict[str, TimeNs] = {}
    model: tuple[TimeNs, TimeNs] | None = None
    loader_ns: TimeNs | None = None
    device: tuple[TimeNs, TimeNs] | None = None
    own: tuple[TimeNs, TimeNs] | None = None
