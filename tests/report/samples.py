"""Reports with known content: one per shape a renderer must cope with."""

import random

from profilerkit.model.communication import Communication, LateRank, Parallelism
from profilerkit.model.finding import Evidence, Finding, Fix, Outcome, Saving
from profilerkit.model.memory import AliveAtPeak, LiveBytes, LiveTensor, Memory, MemoryGrowth, MemoryRow, OutOfMemory
from profilerkit.model.report import Collective, Compute, HostCopy, Kernel, Report
from profilerkit.model.run import Loader, Run, Series, Signal, Trust
from profilerkit.model.step import (
    PARTS,
    DeviceWindow,
    Part,
    Rank,
    RankSteps,
    SlowSteps,
    StepRow,
    Steps,
    StepTimes,
    Warmup,
)
from profilerkit.model.verdict import RECORD, RuledOut, Verdict

MS = 1_000_000
MIB = 1 << 20

SCRIPT = "</script><script>alert(1);document.title='owned'</script>"
HOSTILE = (
    f"{SCRIPT}<img src=x onerror=\"document.title='owned'\">[red]bold[/red] | ` `` ``` <b>b</b> "
    "\x1b[31mred\x1b[0m \x07 \u202egnp.exe\u2069 {{ 7*7 }} %{x} &lt; @everyone https://evil.example/ \udc80 ']\"><!--"
)
LONG = "void at::native::vectorized_elementwise_kernel<4, " + "FillFunctor<float>, " * 500 + "std::array<char*, 1ul>>"

INPUT_PARTS = {
    "input.prep": (34_200_000, "derived"),
    "input.wait": (3_900_000, "measured"),
    "input.h2d": (4_200_000, "measured"),
    "compute.math": (71_300_000, "measured"),
    "compute.small": (6_100_000, "measured"),
    "compute.membw": (18_900_000, "estimated"),
    "comm.other": (21_700_000, "measured"),
    "over.dispatch": (6_400_000, "derived"),
    "over.launch": (2_600_000, "estimated"),
    "sync.d2h": (1_100_000, "measured"),
    "idle.unknown": (5_600_000, "derived"),
}


def parts(times):
    """Parts from ``name: (ns, source)``."""
    total = sum(time for time, _ in times.values())
    rows = [
        Part(part=name, family=PARTS[name][0] if name in PARTS else "other", time_ns=t, share=t / total, source=source)
        for name, (t, source) in times.items()
    ]
    return tuple(sorted(rows, key=lambda part: -part.time_ns))


def step_rows(times, count, *, seed=0, warmup=2, slow=(17,), first=10):
    """Rows that jitter around ``times``; some are slow, the first are warm-up."""
    rng, rows, start = random.Random(seed), [], 5_000_000_123
    for number in range(count):
        scale = 6.0 if number == 0 and warmup else 1.6 if number < warmup else 1.0
        own = {name: int(t * scale * rng.uniform(0.93, 1.07)) for name, (t, _) in times.items()}
        if number in slow:
            own[max(own, key=own.get)] *= 3
        total = sum(own.values())
        state = "warmup" if number < warmup else "steady"
        rows.append(StepRow(index=first + number, start_ns=start, time_ns=total, state=state, parts=own))
        start += total
    return tuple(rows)


def steps_of(rows, count=None, **fields):
    steady = sorted(row.time_ns for row in rows if row.state == "steady")
    times = StepTimes(
        median=steady[len(steady) // 2],
        mean=sum(steady) // len(steady),
        p10=steady[len(steady) // 10],
        p90=steady[-1 - len(steady) // 10],
    )
    dropped = {"warmup": sum(row.state == "warmup" for row in rows)}
    defaults = {"found_by": "wrapped loader", "inferred": False, "dropped": dropped}
    return Steps(count=count or len(rows), steady=len(steady), time_ns=times, rows=rows, **{**defaults, **fields})


def grown(of, *, grows=True):
    """Memory that grows by 20 MiB per step, with room for 14 GiB; or one that does not."""
    known = {"headroom_bytes": 14 << 30, "steps_to_full": 716.8, "ns_to_full": 126_000 * MS} if grows else {}
    return MemoryGrowth(
        of=of,
        bytes_per_step=20.0 * MIB,
        low_bytes_per_step=18.0 * MIB,
        high_bytes_per_step=23.0 * MIB,
        n=50,
        first_step=12,
        last_step=61,
        grows=grows,
        **known,
    )


def memory_rows(count, *, first=10):
    rows = range(count)
    return tuple(MemoryRow(index=first + n, peak_bytes=(50 << 30) + (n << 26), reserved_bytes=66 << 30) for n in rows)


def window(scale=1.0):
    step = int(8_000 * MS * scale)
    return DeviceWindow(
        window_ns=step,
        busy_ns=int(step * 0.69),
        idle_ns=step - int(step * 0.69),
        compute_ns=int(step * 0.55),
        comm_ns=int(step * 0.2),
        exposed_comm_ns=int(step * 0.12),
        copy_ns=int(step * 0.05),
        exposed_copy_ns=int(step * 0.02),
    )


def starved(evidence_ids=("E1", "E2", "E3")):
    ids = iter(evidence_ids)
    return Finding(
        title="The DataLoader cannot feed the GPU",
        bound="input-bound",
        detail="prep",
        severity="high",
        confidence="high",
        saving=Saving(
            low=0.178, expected=0.193, high=0.204, method="replay", calibration="calibrated on 12 applied fixes"
        ),
        why="The GPU is idle for 38.1 ms of each step while `__next__` waits for a batch. Two workers prepare a batch "
        "in 343 ms each and the step needs one every 176 ms.",
        fix=Fix(
            text="Raise `num_workers` 2 → 8 and set `persistent_workers=True`.",
            code="loader = DataLoader(\n    dataset,\n    batch_size=256,\n    num_workers=8,\n"
            "    persistent_workers=True,\n)",
        ),
        confirm="Record again: the wait for a batch must fall below 2 ms. It will not if the host has no idle cores.",
        evidence=(
            Evidence(
                id=next(ids),
                label="GPU idle while the loop waits for a batch",
                value=38.1e6,
                unit="ns",
                low=36.2e6,
                high=39.9e6,
                source="measured",
                origin="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                n=48,
                rank=0,
                steps=(12, 59),
                range_ns=(5_000_000_123, 13_448_000_000),
            ),
            Evidence(
                id=next(ids),
                label="Time one worker needs for a batch",
                value=343e6,
                unit="ns",
                source="measured",
                origin="worker.4711.0.bin",
                n=96,
                rank=0,
            ),
            Evidence(
                id=next(ids), label="num_workers", value=2.0, unit="count", source="measured", origin="loader settings"
            ),
        ),
    )


def tf32(evidence_id="E4"):
    return Finding(
        title="float32 matmuls run without TF32",
        bound="compute-bound",
        severity="medium",
        confidence="medium",
        saving=Saving(low=0.023, expected=0.041, high=0.052, method="analytic"),
        why="62 % of the matmul time is spent in float32 kernels that do not use tensor cores.",
        fix=Fix(
            text="Call `torch.set_float32_matmul_precision('high')`; it is `'highest'` now.",
            code="torch.set_float32_matmul_precision('high')",
        ),
        confirm="Kernel names change from `sgemm` to `tf32`.",
        evidence=(
            Evidence(
                id=evidence_id,
                label="float32 matmul kernels",
                value=0.62,
                unit="ratio",
                source="derived",
                origin="kernel names",
                n=1440,
            ),
        ),
    )


def late_rank(evidence_id="E5", saving=True):
    return Finding(
        title="Rank 5 arrives late at 71 % of all-reduces",
        bound="comm-bound",
        severity="medium",
        confidence="medium",
        rank=5,
        saving=Saving(low=0.045, expected=0.057, high=0.068, method="replay") if saving else None,
        why="The other ranks wait 10.2 ms per step for rank 5, whose own wait for data is 3.1 × the median.",
        fix=Fix(text="Check the host of rank 5: its loader takes 31 ms per batch, the median is 10 ms."),
        confirm="Move rank 5 to another host: the wait must move with the host.",
        evidence=(
            Evidence(
                id=evidence_id,
                label="Arrivals of rank 5 after all others",
                value=0.71,
                unit="ratio",
                source="measured",
                origin="nccl:all_reduce",
                n=960,
                rank=5,
                steps=(12, 59),
            ),
        ),
    )


def passing(rule="ME002", status="passed", **fields):
    defaults = {"summary": "Host-to-device copies use pinned memory.", "reason": "All 48 copies are asynchronous."}
    return Outcome(rule=rule, name="pageable_copy", status=status, **{**defaults, **fields})


def outcomes(*findings):
    codes = {"input-bound": "IN001", "compute-bound": "CP002", "comm-bound": "CM003", None: "RN001"}
    fired = tuple(
        Outcome(rule=codes.get(f.bound, "OV001"), name="starved_device", summary=f.title, status="fired", findings=(f,))
        for f in findings
    )
    rest = [passing(f"ME{number:03d}") for number in range(2, 14)]
    rest += [
        passing(
            f"CM{number:03d}",
            "not_applicable",
            summary="Gradients are reduced in large buckets.",
            reason="The job has one rank.",
        )
        for number in range(4, 10)
    ]
    rest += [
        passing(
            "IN004",
            "missing_data",
            summary="Workers are not starved of CPU.",
            reason="No run-queue delay was recorded.",
            hint="Record with `profilerkit run --host`.",
        ),
        passing(
            "CP007",
            "missing_data",
            summary="Clocks are not throttled.",
            reason="NVML was not readable.",
            hint="Install nvidia-ml-py and record again.",
        ),
        passing("OV009", "error", summary="Garbage collection is rare.", reason="ZeroDivisionError: division by zero"),
        passing("RN003", "suppressed", summary="The window holds enough steps.", reason="Ignored by --ignore RN003."),
        passing("ME020", "off", summary="Experimental: fragmentation.", reason="Off by default."),
    ]
    return (*fired, *rest)


def kernels(count=24):
    names = [
        "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x32",
        "ampere_sgemm_128x64_tn",
        LONG[:400],
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ]
    return tuple(
        Kernel(
            name=f"{names[n % 4]}",
            kind=("math", "math", "membw", "comm")[n % 4],
            count=48 * (n + 1),
            total_ns=int(2_400 * MS / (n + 1)),
            median_ns=int(1_040_000 / (n + 1)),
            share=0.29 / (n + 1),
            **reached(n, int(2_400 * MS / (n + 1))),
        )
        for n in range(count)
    )


def reached(n, total_ns):
    """What is known of a kernel against the roof: all, the name alone, or nothing."""
    if n % 4 == 3:
        return {"kind_source": "estimated"}
    if n % 4 == 1:
        return {"kind_source": "estimated", "tensor_core": False, "operator": "aten::bmm"}
    return {
        "kind_source": "derived",
        "priced_ns": total_ns,
        "flops": round(0.61 * 989e3 * total_ns) if n % 4 == 0 else None,
        "bytes": round(1.2e3 * total_ns),
        "efficiency": 0.76,
        "precision": "bf16",
        "tensor_core": n % 4 == 0,
        "operator": "aten::addmm",
        "module": "Linear_131",
        "line": "models/model.py(410): forward",
    }


COMPUTE = Compute(
    spec="h100-sxm",
    by_shape_ratio=0.93,
    efficiency=0.62,
    priced_ratio=0.97,
    beyond_ratio=0.02,
    small_ratio=0.016,
    tensor_core_ratio=0.88,
    flops_per_step=29.2e12,
    recomputed_flops_per_step=7.3e12,
    precision="bf16",
    peak_flops_per_s=989e12,
    peaks_flops_per_s={"bf16": 989e12, "fp32": 67e12, "tf32": 495e12},
    peak_bytes_per_s=3.35e12,
    mfu=0.31,
    hfu=0.41,
)

COPIES = (
    HostCopy(
        direction="to device",
        memory="pageable",
        per_step=2.0,
        bytes_per_step=38_535_168.0,
        time_ns=3_400_000.0,
        bytes_per_s=11.4e9,
        link_ratio=0.18,
    ),
    HostCopy(direction="to host", memory=None, per_step=5.5, bytes_per_step=None, time_ns=30_000.0),
)


def run(**fields):
    defaults = {
        "name": "resnet50-imagenet",
        "kind": "run",
        "files": ("rank_00000/windows/000123/trace.json.gz",),
        "profilerkit_version": "0.1.0",
        "created": "2026-11-20T11:00:00Z",
    }
    return Run(**{**defaults, **fields})


SIGNALS = (
    Signal(name="device events", state="measured"),
    Signal(name="loader waits", state="measured"),
    Signal(
        name="worker CPU time",
        state="partial",
        reason="1 of 2 workers wrote its file.",
        hint="Let the run end by itself.",
    ),
    Signal(
        name="NVML clocks",
        state="missing",
        reason="The driver library was not found.",
        hint="Install `nvidia-ml-py` and record with `profilerkit run -- train.py`.",
    ),
)


def input_bound():
    """Everything is present."""
    rows = step_rows(INPUT_PARTS, 50)
    breakdown = parts(INPUT_PARTS)
    return Report(
        verdict=Verdict(
            bound="input-bound",
            detail="prep",
            confidence="high",
            headline="The GPU waits 38 ms of every 176 ms step for data",
            share=0.24,
            saving=Saving(low=0.178, expected=0.193, high=0.204, method="replay"),
            contenders=("comm-bound",),
            ruled_out=(
                RuledOut(
                    bound="memory-bound",
                    share=0.107,
                    saving=0.012,
                    reason="Bandwidth-limited kernels take 11 % of the step.",
                ),
                RuledOut(
                    bound="overhead-bound",
                    share=0.057,
                    saving=0.031,
                    reason="The launch queue is empty for 5.1 % of the step.",
                ),
                RuledOut(
                    bound="compute-bound",
                    share=0.44,
                    saving=0.041,
                    reason="Compute kernels run 44 % of the step, below the 70 % that a compute-bound step needs.",
                ),
            ),
            refuted_by="A second recording with `num_workers=8` in which the step does not get shorter.",
            consequence="Fixing the input path alone is worth 18–20 % of the step. "
            "3 of 26 rules fired; 3 could not run.",
        ),
        steps=steps_of(rows),
        breakdown=breakdown,
        ranks=(
            Rank(
                rank=0,
                origin="rank_00000",
                breakdown=breakdown,
                busy_ratio=0.69,
                step_ns=176 * MS,
                device="NVIDIA H100 80GB HBM3",
                device_window=window(),
            ),
        ),
        outcomes=outcomes(tf32(), starved(), late_rank()),
        kernels=kernels(),
        compute=COMPUTE,
        copies=COPIES,
        collectives=(
            Collective(
                name="all_reduce",
                count=960,
                total_ns=1_900 * MS,
                exposed_ns=1_040 * MS,
                bytes=4 << 30,
                dtype="float32",
                group_size=8,
            ),
            Collective(name="broadcast", count=48, total_ns=40 * MS, exposed_ns=2 * MS),
        ),
        memory=Memory(
            peak_allocated_bytes=58 << 30,
            peak_reserved_bytes=66 << 30,
            capacity_bytes=80 << 30,
            allocator_calls_per_step=0.2,
            fragmentation_ratio=0.121,
            allocator_frees_per_step=0.1,
            allocator_retries=2,
            peak_device_used_bytes=70 << 30,
            peak_process_bytes=6 << 30,
            host_capacity_bytes=512 << 30,
            alive=(
                AliveAtPeak(op="aten::convolution", module="nn.Module: Conv2d_3", count=53, bytes=21 << 30),
                AliveAtPeak(op="aten::native_batch_norm", module=None, count=53, bytes=11 << 30),
                AliveAtPeak(op=None, module=None, count=1, bytes=1 << 20),
            ),
            alive_before_bytes=25 << 30,
            growth=(grown("allocated"), grown("process", grows=False)),
            rows=memory_rows(50),
            rows_of="allocated",
        ),
        trust=Trust(
            mode="gpu",
            events=1_204_332,
            repaired=3,
            dropped=1,
            truncated=True,
            inflation_ratio=1.08,
            overhead_ratio=0.004,
            signals=SIGNALS,
            notes=(
                "The last file is cut off: 1.2 of about 1.3 million events were read.",
                "Steps were traced 8 % slower than they run; host parts are divided by 1.08.",
            ),
        ),
        run=run(
            world_size=8,
            ranks=(0,),
            missing_ranks=7,
            ended="finished",
            command="python train.py --batch-size 256 --data /data",
            devices=("NVIDIA H100 80GB HBM3",),
            batch_size=256,
            loader=Loader(
                kind="torch.utils.data.DataLoader",
                num_workers=2,
                batch_size=256,
                pin_memory=True,
                prefetch_factor=2,
                persistent_workers=False,
                dataset_len=1_281_167,
            ),
            versions={"torch": "2.13.0", "cuda": "13.0", "driver": "580.65", "python": "3.12.4"},
            settings={"trace_steps": "50", "warmup_steps": "10", "OMP_NUM_THREADS": "1"},
            samples=(
                Series(name="gpu.utilization", unit="ratio", n=121, mean=0.71, p10=0.4, p90=0.98, maximum=1.0, rank=0),
                Series(name="host.cpu", unit="ratio", n=121, mean=0.22, p10=0.2, p90=0.25, maximum=0.4),
            ),
        ),
    )


def balanced():
    times = {
        "compute.math": (88 * MS, "measured"),
        "compute.membw": (6 * MS, "estimated"),
        "over.dispatch": (3 * MS, "derived"),
        "input.wait": (2 * MS, "measured"),
        "idle.unknown": (1 * MS, "derived"),
    }
    breakdown = parts(times)
    return Report(
        verdict=Verdict(
            bound="balanced",
            confidence="medium",
            headline="No single cause costs more than 5 % of the step",
            share=0.88,
            ruled_out=(
                RuledOut(bound="input-bound", share=0.02, saving=0.018, reason="The wait for data is 2.0 ms."),
                RuledOut(
                    bound="comm-bound",
                    share=None,
                    saving=None,
                    reason="Collectives are only seen in a trace.",
                    state="not measured",
                ),
            ),
        ),
        steps=steps_of(step_rows(times, 30, slow=())),
        breakdown=breakdown,
        ranks=(Rank(rank=None, origin="trace.json", breakdown=breakdown, busy_ratio=0.94, step_ns=100 * MS),),
        outcomes=(passing(), passing("IN001"), passing("CM001", "not_applicable", reason="The job has one rank.")),
        kernels=kernels(3),
        collectives=(),
        memory=Memory(peak_allocated_bytes=12 << 30),
        trust=Trust(mode="gpu", events=90_000, signals=SIGNALS[:1]),
        run=run(name="trace.json", kind="trace", files=("trace.json",)),
    )


def inconclusive():
    """Almost everything is ``None``."""
    return Report(
        verdict=Verdict(
            bound="inconclusive",
            confidence="low",
            headline="Only 2 steps were recorded; record at least 20 with --steps 20",
            command=RECORD,
        ),
        steps=Steps(count=2, steady=0, dropped={"warmup": 2}, found_by="ProfilerStep", inferred=False, time_ns=None),
        breakdown=(),
        ranks=(),
        kernels=(),
        collectives=(),
        memory=Memory(),
        trust=Trust(mode="steps"),
        outcomes=(passing("IN001", "missing_data", reason="No steady step.", hint="Record with `--steps 20`."),),
        run=run(name="trace.json", kind="trace", files=("trace.json",)),
    )


def empty():
    """Nothing at all, not even a rule."""
    return Report(
        verdict=Verdict(bound="inconclusive", confidence="low", headline="The file holds no step", command=RECORD),
        steps=Steps(count=0, steady=0, dropped={}, found_by="", inferred=True, time_ns=None),
        breakdown=(),
        ranks=(),
        outcomes=(),
        kernels=(),
        collectives=(),
        memory=Memory(),
        trust=Trust(mode="cpu"),
        run=run(name="", kind="trace", files=()),
    )


def compute_bound():
    times = {
        "compute.math": (2_840 * MS, "measured"),
        "compute.membw": (260 * MS, "estimated"),
        "idle.unknown": (20 * MS, "derived"),
    }
    base = balanced()
    breakdown = parts(times)
    return Report(
        verdict=Verdict(
            bound="compute-bound",
            confidence="high",
            share=0.91,
            headline="Matrix kernels run 2.8 s of every 3.1 s step at 61 % of peak",
        ),
        steps=steps_of(step_rows(times, 24, slow=(), warmup=0)),
        breakdown=breakdown,
        ranks=base.ranks,
        outcomes=outcomes(tf32("")),
        kernels=kernels(4),
        compute=COMPUTE,
        collectives=(),
        memory=base.memory,
        trust=base.trust,
        run=base.run,
    )


COLLECTIVES = (
    Collective(
        name="allreduce",
        kind="all_reduce",
        count=4_800,
        total_ns=2_900 * MS,
        exposed_ns=1_100 * MS,
        bytes=4_800 * 4 * MIB,
        dtype="bfloat16",
        group_size=8,
        transfer_ns=2_400 * MS,
        wait_ns=500 * MS,
        bus_bytes_per_s=14.7e9,
        link_ratio=0.0327,
        link_bytes_per_s=450e9,
    ),
    Collective(
        name="_allgather_base",
        kind="all_gather",
        count=960,
        total_ns=900 * MS,
        exposed_ns=40 * MS,
        bytes=960 * 25 * MIB,
        dtype="bfloat16",
        group_size=64,
        bus_bytes_per_s=27.5e9,
        bandwidth_is_bound=True,
    ),
    Collective(name="barrier", kind="barrier", count=48, total_ns=40 * MS, exposed_ns=2 * MS),
)


def multi_rank(count=64, late=5):
    """Communication-bound by one late rank."""
    rng = random.Random(3)
    times = {
        "comm.other": (61 * MS, "measured"),
        "compute.math": (92 * MS, "measured"),
        "compute.membw": (14 * MS, "estimated"),
        "over.dispatch": (4 * MS, "derived"),
        "input.wait": (1 * MS, "measured"),
        "idle.unknown": (2 * MS, "derived"),
    }
    ranks = []
    for number in range(count):
        own = {name: (int(t * rng.uniform(0.9, 1.1)), source) for name, (t, source) in times.items()}
        if number == late:
            own["input.wait"], own["comm.other"] = (58 * MS, "measured"), (3 * MS, "measured")
        ranks.append(
            Rank(
                rank=number,
                origin=f"rank_{number:05d}",
                breakdown=parts(own),
                busy_ratio=0.6 + 0.3 * rng.random(),
                step_ns=int(174 * MS * rng.uniform(0.99, 1.01)),
                device="NVIDIA H100 80GB HBM3",
                device_window=window(1 + number / 500),
                last=110 if number == late else 0,
                matched=120,
                caused_ns=58 * MS * (count - 1) * 118 if number == late else number * MS,
                waited_ns=0 if number == late else 58 * MS * 118,
                clock_offset_ns=0 if not number else (-1) ** number * number * 1_000,
                clock_residual_ns=None if not number else 12_000,
            )
        )
    base = input_bound()
    return Report(
        verdict=Verdict(
            bound="comm-bound",
            detail="latency",
            confidence="medium",
            rank=late,
            share=0.35,
            headline=f"Rank {late} makes {count - 1} ranks wait 58 ms of every 174 ms step",
            saving=Saving(low=0.21, expected=0.29, high=0.33, method="bound"),
            contenders=(),
            ruled_out=(RuledOut(bound="input-bound", share=0.01, saving=None, reason="Only rank 5 waits for data."),),
        ),
        steps=steps_of(step_rows(times, 120, slow=(30, 31, 77))),
        breakdown=ranks[0].breakdown,
        ranks=tuple(ranks),
        outcomes=outcomes(late_rank("E1"), late_rank("E1", saving=False)),
        kernels=base.kernels,
        collectives=COLLECTIVES,
        rank_steps=RankSteps(
            of="caused",
            group=1,
            count=118,
            index=tuple(range(12, 112)),
            time_ns=tuple(
                tuple(58 * MS if number == late and step % 10 else number * 9_000 for step in range(100))
                for number in range(count)
            ),
        ),
        memory=Memory(),
        trust=base.trust,
        run=run(
            name="llama-8x8",
            world_size=count,
            ranks=tuple(range(count)),
            devices=("NVIDIA H100 80GB HBM3",),
            batch_size=4,
        ),
        communication=Communication(
            matched=120,
            of=124,
            by="sequence",
            residual_ns=12_000,
            steps=118,
            waited_ns=58 * MS * (count - 1) * 118,
            time_ns=61 * MS * count * 118,
            transfer_ns=(61 * count - 58 * (count - 1)) * MS * 118,
            late=(
                LateRank(
                    rank=late,
                    origin=f"rank_{late:05d}",
                    share=0.97,
                    last=110,
                    of=120,
                    cause="input.wait",
                    cause_ns=57 * MS,
                    waited_ns=58 * MS,
                    coverage=0.98,
                ),
            ),
            parallelism=(
                Parallelism(name="sharded data", size=8, evidence="FullyShardedDataParallel.forward"),
                Parallelism(
                    name="pipeline",
                    size=4,
                    evidence="process group mesh_pp",
                    micro_batches=8,
                    bubble_share=0.31,
                    schedule_share=3 / 11,
                ),
            ),
        ),
    )


def many_steps(count=2_000):
    rows = step_rows(INPUT_PARTS, count, slow=tuple(range(90, count, 333)), seed=5, first=0)
    base = input_bound()
    return Report(
        verdict=base.verdict,
        steps=steps_of(rows, 48_000, thinned=True),
        breakdown=base.breakdown,
        ranks=base.ranks,
        outcomes=base.outcomes,
        kernels=base.kernels[:4],
        collectives=base.collectives,
        memory=Memory(peak_reserved_bytes=66 << 30, capacity_bytes=80 << 30),
        trust=base.trust,
        run=base.run,
    )


def lengths_only():
    """Step timers and nothing else; one step took ten times as long."""
    rows = tuple(
        StepRow(index=n, start_ns=n * 20 * MS, time_ns=(200 if n == 7 else 20) * MS, state="steady") for n in range(12)
    )
    return Report(
        verdict=Verdict(
            bound="inconclusive", confidence="low", headline="Steps take 20 ms; nothing says what they are made of"
        ),
        steps=steps_of(rows, found_by="Optimizer.step", inferred=True),
        breakdown=(),
        ranks=(),
        outcomes=(passing(),),
        kernels=(),
        collectives=(),
        memory=Memory(),
        trust=Trust(mode="steps", overhead_ratio=0.0),
        run=run(name="light-only"),
    )


def hostile(name=HOSTILE):
    """The same hostile text in every place that a trace or a user can fill."""
    evidence = Evidence(
        id=name, label=name, value=None, unit=name, source="measured", origin=name, n=1, rank=3, steps=(1, 1)
    )
    finding = Finding(
        title=name,
        bound="input-bound",
        detail=name,
        severity="high",
        confidence="low",
        why=name,
        saving=Saving(low=-0.02, expected=0.1, high=0.2, method="bound", calibration=name),
        fix=Fix(text=name, code=f"a = 1\n{name}\n\tb"),
        confirm=name,
        rank=3,
        evidence=(evidence, evidence),
    )
    times = {"input.wait": (38 * MS, "measured"), name: (5 * MS, "estimated"), "compute.math": (60 * MS, "measured")}
    breakdown = parts(times)
    rows = step_rows(times, 20, slow=(9,))
    ranks = tuple(
        Rank(
            rank=None if number else 0,
            origin=name,
            breakdown=breakdown,
            busy_ratio=None,
            step_ns=None,
            device=name,
            device_window=window(),
            last=1,
            matched=2,
            caused_ns=5,
            waited_ns=5,
        )
        for number in range(3)
    )
    status = ("passed", "not_applicable", "missing_data", "error", "suppressed", "off")
    rest = tuple(Outcome(rule=name, name=name, summary=name, status=s, reason=name, hint=name) for s in status)
    return Report(
        verdict=Verdict(
            bound="overhead-bound",
            detail=name,
            confidence="low",
            headline=name,
            consequence=name,
            refuted_by=name,
            ruled_out=(RuledOut(bound="input-bound", share=0.1, saving=None, reason=name),),
            contenders=("comm-bound",),
        ),
        steps=steps_of(
            rows,
            found_by=name,
            dropped={name: 3},
            warmup=Warmup(steps=3, time_ns=5, excess_ns=4, cause=name),
            slow=SlowSteps(count=1, excess_ns=5, share=0.1, part=name, part_excess_ns=4, coverage=0.8, first=9, last=9),
        ),
        breakdown=breakdown,
        ranks=ranks,
        outcomes=(Outcome(rule=name, name=name, summary=name, status="fired", findings=(finding,) * 4), *rest),
        kernels=(
            Kernel(
                name=name,
                kind=name,
                count=1,
                priced_ns=5,
                flops=5,
                bytes=5,
                efficiency=0.5,
                total_ns=5,
                median_ns=5,
                share=0.1,
                operator=name,
                module=name,
                line=name,
                precision=name,
            ),
        ),
        oom=OutOfMemory(
            device=name,
            message=name,
            live=(LiveBytes(kind="other", bytes=5),),
            largest=(LiveTensor(kind="other", shape=(1,) * 30, dtype=name, bytes=5),),
            rank=1,
        ),
        compute=Compute(spec=name, precision=name, mfu=0.5, peak_flops_per_s=1e12, flops_per_step=1e12),
        collectives=(
            Collective(
                name=name,
                count=1,
                total_ns=5,
                exposed_ns=1,
                dtype=name,
                kind=name,
                bytes=5,
                bus_bytes_per_s=5.0,
                link_bytes_per_s=1e9,
            ),
        ),
        rank_steps=RankSteps(of="caused", group=1, count=2, index=(1, 2), time_ns=((5, 9**9), (None, 0), (0, 1))),
        communication=Communication(
            matched=1,
            of=2,
            by="order",
            late=(
                LateRank(
                    rank=None, origin=name, share=0.9, last=1, of=2, cause=name, cause_ns=1, waited_ns=1, coverage=0.7
                ),
            ),
            problems=(name,),
            parallelism=(Parallelism(name="expert", size=None, evidence=name),),
        ),
        memory=Memory(
            peak_allocated_bytes=100,
            allocator_calls_per_step=1.5,
            place="host",
            alive=(
                AliveAtPeak(op=name, module=name, count=1, bytes=60),
                AliveAtPeak(op=None, module=None, count=1, bytes=2),
            ),
            rows=(MemoryRow(index=0, peak_bytes=0), MemoryRow(index=1, peak_bytes=100)),
            rows_of="allocated",
        ),
        trust=Trust(mode="cpu", signals=(Signal(name=name, state="missing", reason=name, hint=name),), notes=(name,)),
        run=run(
            name=name,
            files=(name,),
            command=name,
            ended=name,
            devices=(name,),
            created=name,
            profilerkit_version=name,
            loader=Loader(kind=name),
            versions={name: name},
            settings={name: name},
            samples=(Series(name=name, unit=name, n=1, mean=1.0, p10=1.0, p90=1.0, maximum=1.0),),
        ),
    )


SAMPLES = {
    "input_bound": input_bound,
    "balanced": balanced,
    "inconclusive": inconclusive,
    "empty": empty,
    "compute_bound": compute_bound,
    "multi_rank": multi_rank,
    "many_steps": many_steps,
    "lengths_only": lengths_only,
    "hostile": hostile,
    "hostile_long": lambda: hostile(LONG),
    "hostile_wide": lambda: hostile("宽|`<" * 3_000),
}
