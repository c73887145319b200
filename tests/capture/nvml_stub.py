"""Runs code against the stub of NVIDIA's library in a process of its own, through the real pynvml."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIRST, SECOND = "GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002"
MIG = "MIG-cccccccc-0000-0000-0000-000000000003"

#: ``cuda(UUID)`` puts a torch in place that uses the device with this UUID; without UUID CUDA is not in use.
_PRELUDE = """
import json, sys, time, types
from profilerkit.capture.nvml import NvmlSource

def cuda(uuid=None, held=(0, 1)):
    used = types.SimpleNamespace(
        is_initialized=lambda: uuid is not None,
        device_count=lambda: len(held),
        memory_allocated=lambda index: held[index],
        max_memory_allocated=lambda index: held[index],
        get_device_properties=lambda index: types.SimpleNamespace(name="Fake", uuid=uuid if held[index] else "other"),
    )
    sys.modules["torch"], sys.modules["torch.cuda"] = types.SimpleNamespace(cuda=used), used

def say(**found):
    import msgspec
    print(json.dumps({name: json.loads(msgspec.json.encode(value)) for name, value in found.items()}))

def read(times=1, pause=0.0):
    source = NvmlSource()
    reason = source.open()
    samples = []
    for _ in range(times):
        samples.append(None if reason else source.read())
        time.sleep(pause)
    facts = source.facts
    missing = source.missing()
    if not reason:
        source.close()
    say(reason=reason, samples=[sample and sample.gpu for sample in samples], facts=facts, missing=missing)
"""


class Stub:
    """A compiled library and what was asked of it."""

    def __init__(self, directory: Path, log: Path) -> None:
        self._directory = directory
        self._log = log

    @property
    def calls(self) -> list[str]:
        """Names of the functions that were called."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    def environment(self, **variables: str) -> dict[str, str]:
        """Where the library is found and how it behaves."""
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        env |= {"LD_LIBRARY_PATH": str(self._directory), "FAKE_NVML_LOG": str(self._log)}
        return {**env, **variables}

    def run(self, code: str, **variables: str) -> dict:
        """What ``code`` says of its readings."""
        done = subprocess.run(
            [sys.executable, "-c", _PRELUDE + code],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment(**variables),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def compiled(directory: Path, *options: str) -> Path:
    """The directory of the library; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    pytest.importorskip("pynvml")
    library, source = directory / "libnvidia-ml.so.1", Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-w", "-shared", "-fPIC", *options, "-o", library, source], check=True)
    return directory
