"""Which Python frames are read although frames are not wanted."""

import re

# Frames that explain why the host paused; the analysis looks for them by name.
_PAUSING = re.compile(
    r"gc\.collect|^Python GC|^<built-in function collect>$|dynamo_timed|entire_(?:frame|backward)_compile"
    r"|backend_compile|compile_inner|^dynamo$|^inductor_codecache"
)
FRAME = "python_function"
# More than the distinct frames of any real trace; further ones are searched each time.
_REMEMBERED = 2**16


class PausingFrames(dict[str, bool]):
    """Frame name to whether it is garbage collection or compilation.

    >>> frames = PausingFrames()
    >>> frames["gc.py(12): gc.collect"], frames["train.py(3): step"]
    (True, False)
    """

    def __missing__(self, name: str) -> bool:
        pausing = _PAUSING.search(name) is not None
        if len(self) < _REMEMBERED:
            self[name] = pausing
        return pausing
