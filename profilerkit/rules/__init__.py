"""Facts to findings: one rule per file, listed here."""

from profilerkit.rules.comm.exposed_collectives import ExposedCollectives
from profilerkit.rules.comm.late_rank import LateRank
from profilerkit.rules.compute.fp32_matmul import Fp32Matmul
from profilerkit.rules.compute.hollow_utilisation import HollowUtilisation
from profilerkit.rules.compute.pointwise_chain import PointwiseChain
from profilerkit.rules.input.costly_handover import CostlyHandover
from profilerkit.rules.input.costly_samples import CostlySamples
from profilerkit.rules.input.full_host import FullHost
from profilerkit.rules.input.no_workers import NoWorkers
from profilerkit.rules.input.pageable_copy import PageableCopy
from profilerkit.rules.input.slow_storage import SlowStorage
from profilerkit.rules.input.starved_device import StarvedDevice
from profilerkit.rules.input.too_few_workers import TooFewWorkers
from profilerkit.rules.memory.allocator_churn import AllocatorChurn
from profilerkit.rules.memory.growing_memory import GrowingMemory
from profilerkit.rules.memory.near_capacity import NearCapacity
from profilerkit.rules.overhead.frequent_sync import FrequentSync
from profilerkit.rules.overhead.launch_bound import LaunchBound
from profilerkit.rules.rule import Rule
from profilerkit.rules.run.periodic_stall import PeriodicStall
from profilerkit.rules.run.uneven_steps import UnevenSteps
from profilerkit.rules.run.unsteady_window import UnsteadyWindow

#: Every built-in rule, sorted by code.
RULES: tuple[Rule, ...] = (
    ExposedCollectives(),
    LateRank(),
    Fp32Matmul(),
    PointwiseChain(),
    HollowUtilisation(),
    StarvedDevice(),
    NoWorkers(),
    TooFewWorkers(),
    FullHost(),
    SlowStorage(),
    CostlySamples(),
    CostlyHandover(),
    PageableCopy(),
    AllocatorChurn(),
    NearCapacity(),
    GrowingMemory(),
    LaunchBound(),
    FrequentSync(),
    PeriodicStall(),
    UnsteadyWindow(),
    UnevenSteps(),
)
