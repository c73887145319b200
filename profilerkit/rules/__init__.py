"""Facts to findings: one rule per file, listed here."""

from profilerkit.rules.comm.contended_kernels import ContendedKernels
from profilerkit.rules.comm.ddp_settings import DdpSettings
from profilerkit.rules.comm.exposed_collectives import ExposedCollectives
from profilerkit.rules.comm.fp32_gradients import Fp32Gradients
from profilerkit.rules.comm.late_rank import LateRank
from profilerkit.rules.comm.oversharded_model import OvershardedModel
from profilerkit.rules.comm.pipeline_bubble import PipelineBubble
from profilerkit.rules.comm.repeated_reductions import RepeatedReductions
from profilerkit.rules.comm.slow_link import SlowLink
from profilerkit.rules.comm.small_collectives import SmallCollectives
from profilerkit.rules.comm.unhidden_collectives import UnhiddenCollectives
from profilerkit.rules.comm.wrong_engine import WrongEngine
from profilerkit.rules.compute.algorithm_search import AlgorithmSearch
from profilerkit.rules.compute.channels_first import ChannelsFirst
from profilerkit.rules.compute.dense_embedding import DenseEmbedding
from profilerkit.rules.compute.fp32_matmul import Fp32Matmul
from profilerkit.rules.compute.hollow_utilisation import HollowUtilisation
from profilerkit.rules.compute.hot_device import HotDevice
from profilerkit.rules.compute.misaligned_matmul import MisalignedMatmul
from profilerkit.rules.compute.pointwise_chain import PointwiseChain
from profilerkit.rules.compute.small_batch import SmallBatch
from profilerkit.rules.compute.throttled_clock import ThrottledClock
from profilerkit.rules.compute.underfilled_grid import UnderfilledGrid
from profilerkit.rules.compute.unfused_attention import UnfusedAttention
from profilerkit.rules.compute.unfused_optimizer import UnfusedOptimizer
from profilerkit.rules.input.cold_epoch import ColdEpoch
from profilerkit.rules.input.costly_handover import CostlyHandover
from profilerkit.rules.input.costly_samples import CostlySamples
from profilerkit.rules.input.full_host import FullHost
from profilerkit.rules.input.itemwise_samples import ItemwiseSamples
from profilerkit.rules.input.no_workers import NoWorkers
from profilerkit.rules.input.pageable_copy import PageableCopy
from profilerkit.rules.input.restarted_workers import RestartedWorkers
from profilerkit.rules.input.serial_copy import SerialCopy
from profilerkit.rules.input.shallow_prefetch import ShallowPrefetch
from profilerkit.rules.input.slow_storage import SlowStorage
from profilerkit.rules.input.starved_device import StarvedDevice
from profilerkit.rules.input.too_few_workers import TooFewWorkers
from profilerkit.rules.input.uneven_parts import UnevenParts
from profilerkit.rules.input.unneeded_batches import UnneededBatches
from profilerkit.rules.memory.allocator_churn import AllocatorChurn
from profilerkit.rules.memory.exposed_offload import ExposedOffload
from profilerkit.rules.memory.filled_gradients import FilledGradients
from profilerkit.rules.memory.fragmented_memory import FragmentedMemory
from profilerkit.rules.memory.growing_memory import GrowingMemory
from profilerkit.rules.memory.near_capacity import NearCapacity
from profilerkit.rules.memory.needless_recompute import NeedlessRecompute
from profilerkit.rules.memory.oversized_hardware import OversizedHardware
from profilerkit.rules.memory.oversized_step import OversizedStep
from profilerkit.rules.memory.rounded_requests import RoundedRequests
from profilerkit.rules.overhead.collection_pauses import CollectionPauses
from profilerkit.rules.overhead.costly_operator import CostlyOperator
from profilerkit.rules.overhead.debug_switch import DebugSwitch
from profilerkit.rules.overhead.frequent_sync import FrequentSync
from profilerkit.rules.overhead.heavy_profiler import HeavyProfiler
from profilerkit.rules.overhead.launch_bound import LaunchBound
from profilerkit.rules.overhead.oversubscribed_cores import OversubscribedCores
from profilerkit.rules.overhead.python_work import PythonWork
from profilerkit.rules.overhead.recompilation import Recompilation
from profilerkit.rules.overhead.small_transfers import SmallTransfers
from profilerkit.rules.rule import Rule
from profilerkit.rules.run.blocking_checkpoint import BlockingCheckpoint
from profilerkit.rules.run.contended_host import ContendedHost
from profilerkit.rules.run.degraded_link import DegradedLink
from profilerkit.rules.run.growing_steps import GrowingSteps
from profilerkit.rules.run.resting_device import RestingDevice
from profilerkit.rules.run.shared_device import SharedDevice
from profilerkit.rules.run.training_pause import TrainingPause
from profilerkit.rules.run.uneven_steps import UnevenSteps
from profilerkit.rules.run.unsteady_window import UnsteadyWindow

#: Every built-in rule, sorted by code.
RULES: tuple[Rule, ...] = (
    ExposedCollectives(),
    UnhiddenCollectives(),
    LateRank(),
    SlowLink(),
    SmallCollectives(),
    OvershardedModel(),
    RepeatedReductions(),
    DdpSettings(),
    WrongEngine(),
    Fp32Gradients(),
    PipelineBubble(),
    ContendedKernels(),
    Fp32Matmul(),
    MisalignedMatmul(),
    UnderfilledGrid(),
    PointwiseChain(),
    UnfusedAttention(),
    UnfusedOptimizer(),
    ChannelsFirst(),
    HollowUtilisation(),
    ThrottledClock(),
    AlgorithmSearch(),
    SmallBatch(),
    HotDevice(),
    DenseEmbedding(),
    StarvedDevice(),
    NoWorkers(),
    TooFewWorkers(),
    ShallowPrefetch(),
    FullHost(),
    SlowStorage(),
    CostlySamples(),
    CostlyHandover(),
    PageableCopy(),
    SerialCopy(),
    RestartedWorkers(),
    ColdEpoch(),
    ItemwiseSamples(),
    UnevenParts(),
    UnneededBatches(),
    AllocatorChurn(),
    FragmentedMemory(),
    NearCapacity(),
    GrowingMemory(),
    NeedlessRecompute(),
    OversizedHardware(),
    FilledGradients(),
    ExposedOffload(),
    RoundedRequests(),
    OversizedStep(),
    LaunchBound(),
    FrequentSync(),
    SmallTransfers(),
    CollectionPauses(),
    PythonWork(),
    Recompilation(),
    HeavyProfiler(),
    OversubscribedCores(),
    DebugSwitch(),
    CostlyOperator(),
    BlockingCheckpoint(),
    TrainingPause(),
    UnsteadyWindow(),
    UnevenSteps(),
    ContendedHost(),
    SharedDevice(),
    DegradedLink(),
    RestingDevice(),
    GrowingSteps(),
)
