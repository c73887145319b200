"""An asynchronous accelerator of the mind: ``torch.cuda`` on a CPU, as queues with a clock.

    import virtual_device
    device = virtual_device.install()          # before CUDA is looked for; device.remove() puts torch back
    device.launch(0.020)                       # one kernel of 20 ms on the current stream
    loss.item()                                # drains the stream, as a tensor with a gradient does on a GPU

Nothing runs on it: kernels are lengths of time. What the host sees is what CUDA shows it: launches return at once until
1,024 wait, events are reached when the queue before them is done, synchronisation, ``item()`` and pageable copies wait.
"""

from virtual_device.device import Device, Event, Stream
from virtual_device.torch_cuda import Installed, install

__all__ = ["Device", "Event", "Installed", "Stream", "install"]
