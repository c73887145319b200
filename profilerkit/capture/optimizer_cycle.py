"""Decides which optimizer ends a step that nothing else ends: the one that joined the loop last."""

#: The optimizer that ended steps is taken to be gone after so many steps of others; a Wasserstein GAN's critic makes 5.
_LONGEST_CYCLE = 64


class OptimizerCycle:
    """The optimizers of a loop, as they repeat.

    >>> cycle = OptimizerCycle()
    >>> [cycle.stepped(optimizer, now_ns) for now_ns, optimizer in enumerate((1, 2, 1, 2))]
    [(), (), (1,), (3,)]
    """

    __slots__ = ("_closing", "_known", "_since_closing", "_tentative_ns")

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._closing: int | None = None  # the one of them that joined last
        self._tentative_ns: int | None = None  # where the step ends unless another one joins
        self._since_closing = 0

    def stepped(self, optimizer: int, now_ns: int) -> tuple[int, ...]:
        """Where steps end, now that this optimizer has stepped: here, or there and here, or nowhere yet."""
        self._since_closing += 1
        if optimizer not in self._known or self._since_closing > _LONGEST_CYCLE:
            if optimizer in self._known:
                self._known.clear()
            self._known.add(optimizer)
            self._closing, self._tentative_ns, self._since_closing = optimizer, now_ns, 0
            return ()
        before = () if self._tentative_ns is None else (self._tentative_ns,)
        self._tentative_ns = None
        if optimizer != self._closing:
            return before
        self._since_closing = 0
        return (*before, now_ns)

    def step_opened(self) -> None:
        """A step begins: where one ended is no question any more."""
        self._tentative_ns = None
