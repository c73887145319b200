"""Runs at the start of every Python below ``profilerkit run``, before its program: lets those record that can.

The directory stands first in ``PYTHONPATH``. It leaves ``sys.path`` again, and the ``sitecustomize`` that it hides runs
as if this one were not there. Every Python since 2.7 has to read this file; one that cannot record does nothing else.
"""

import os
import sys


def _leave():  # type: ignore[no-untyped-def]  # noqa: ANN202  Python 2 reads this too
    """Take the directory and this module out, and have the others wait for torch where that can be."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib costs 5 ms in every Python
    this = sys.modules.pop(__name__)
    if "PROFILERKIT_RUN" in os.environ and sys.version_info >= (3, 11):
        import wait_for_torch  # type: ignore[import-not-found]

        wait_for_torch.begin()
        del sys.modules["wait_for_torch"]
    for entry in [entry for entry in sys.path if os.path.abspath(entry) == here]:  # noqa: PTH100
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)
    return this  # Python 2 empties a module that nobody holds, while it runs


_this = _leave()  # type: ignore[no-untyped-call]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401  the program's; none is an error that Python expects
