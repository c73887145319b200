"""Secrets do not survive: sixty shapes, in five places, in five outputs; names of code do."""

import gzip
import random
import re
import string
from pathlib import Path
from unittest.mock import Mock

import pytest

from profilerkit.integrations import mlflow
from profilerkit.model import revise
from profilerkit.model.events import EventTrack, StepEvents
from profilerkit.model.finding import Outcome
from profilerkit.model.memory import OutOfMemory
from profilerkit.model.run import Signal
from profilerkit.report import json as report_json
from profilerkit.report import terminal
from profilerkit.report.redaction import redacted
from profilerkit.results import as_report
from profilerkit.rundir.ending import ending_of
from profilerkit.rundir.layout import RankEnd
from profilerkit.rundir.places import Identity
from profilerkit.rundir.reader import RunRecord
from profilerkit.secrets import MASK, masked, masked_arguments
from tests.hostile.secret_shapes import SHAPES
from tests.recipes import Log, rank_record
from tests.report.samples import SAMPLES


def small():
    """A report with one finding, one kernel and one rank."""
    full = SAMPLES["input_bound"]()
    first = revise(full.outcomes[0], page={})
    return revise(
        full, outcomes=(first,), kernels=full.kernels[:1], ranks=full.ranks[:1], steps=revise(full.steps, rows=())
    )


SMALL = small()
SHARED = Path(__file__).resolve().parents[3] / "shared"


def with_evidence(texts, title, why, origin):
    """``SMALL`` with the texts in its only finding, and a piece of evidence for each."""
    (outcome,) = SMALL.outcomes
    (first, *_) = outcome.findings[0].evidence
    evidence = tuple(revise(first, id=f"E{n}", label=text, origin=origin(text)) for n, text in enumerate(texts, 1))
    finding = revise(outcome.findings[0], title=title, why=why, evidence=evidence)
    return revise(SMALL, outcomes=(revise(outcome, findings=(finding,)),))


def in_argv(texts):
    return revise(SMALL, run=revise(SMALL.run, command=" ".join(("train.py --lr 0.1", *texts))))


def in_environment(texts):
    known = {"NCCL_ALGO": texts[0], "trace_steps": "10"}
    return revise(SMALL, run=revise(SMALL.run, settings=known | {f"MY_STORE{n}": text for n, text in enumerate(texts)}))


def in_messages(texts):
    """What a training program, a rule, a part of capture and the allocator failed with."""
    end = RankEnd(reason="exception", exception=f"mylib.Stopped: {texts[0]}", steps=3, dropped_records=0, end_perf_ns=1)
    rank = rank_record(Log().steps(3, 100), end=end)
    ended = ending_of(RunRecord(path=Path("run"), manifest=None, ranks=(rank,), missing_ranks=(), notes=()))
    assert texts[0] in ended.failure
    blank = Outcome(rule="XX001", name="x", summary="A rule", status="error")
    return revise(
        SMALL,
        run=revise(SMALL.run, ended=ended.word, ending=ended.kind, failure=ended.failure, messages=ended.messages),
        outcomes=(*SMALL.outcomes, *(revise(blank, reason=f"ValueError: {text}") for text in texts)),
        trust=revise(
            SMALL.trust,
            signals=tuple(Signal(name="x", state="missing", reason=f"OSError in start: {text}") for text in texts),
            notes=tuple(f"It failed with OSError: {text}" for text in texts),
        ),
        oom=OutOfMemory(device="cuda:0", message=texts[0]),
    )


def in_metadata(texts):
    """Names of a trace: kernels, operators, modules, annotations, devices, versions."""
    report = with_evidence(texts, f"`{texts[0]}` waits", f"The phase {texts[0]} is slow.", str)
    known = SMALL.kernels[0]
    kernels = [revise(known, name=text, operator=text, module=text, line=f"net.py(3): {text}") for text in texts]
    versions = {f"package{n}": text for n, text in enumerate(texts)}
    return revise(
        report,
        kernels=tuple(kernels),
        run=revise(report.run, devices=tuple(texts), processors=tuple(texts), versions=versions),
    )


def in_names(texts):
    """Files, directories and hosts. A remote file is called by its URL."""
    names = tuple(text if "://" in text else text.rpartition("/")[2] for text in texts)
    report = with_evidence(texts, f"{texts[0]} is read again", f"Reads of {texts[0]} repeat.", lambda text: text)
    return revise(
        report,
        ranks=tuple(revise(SMALL.ranks[0], rank=n, origin=name) for n, name in enumerate(names)),
        kernels=tuple(revise(SMALL.kernels[0], line=f"{text}(12): forward") for text in texts),
        trust=revise(SMALL.trust, damaged=names),
        run=revise(SMALL.run, name=names[0], files=names),
    )


PLACES = {
    "argv": in_argv,
    "environment": in_environment,
    "messages": in_messages,
    "metadata": in_metadata,
    "names": in_names,
}


def timeline(texts):
    """A step with an event of each name."""
    track = EventTrack(name=texts[0], kind="thread", rows=1)
    zeros = (0,) * len(texts)
    return StepEvents(
        step=1,
        time_ns=9,
        is_median=True,
        mode="cpu",
        tracks=(track,),
        names=tuple(texts),
        families=("compute",),
        left_out=0,
        start_ns=zeros,
        dur_ns=zeros,
        name=tuple(range(len(texts))),
        row=zeros,
        family=zeros,
    )


def survivors(shapes, written):
    return {shape.name for shape in shapes if any(secret in written for secret in shape.secrets)}


@pytest.mark.parametrize("is_local", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_no_shape_survives_in_a_redacted_report(place, is_local):
    """By itself, in every text that there is for a renderer to show."""
    planted = set()
    for shape in SHAPES:
        report = PLACES[place]([shape.text])
        planted |= survivors([shape], report_json.render(report))
        assert survivors([shape], report_json.render(redacted(report, Identity(), is_local=is_local))) == set()
    assert len(planted) >= 58


@pytest.mark.parametrize("place", PLACES)
def test_no_shape_survives_in_html_markdown_json_terminal_and_trackers(place):
    for first in range(0, len(SHAPES), 16):
        shapes = SHAPES[first : first + 16]
        texts = [shape.text for shape in shapes]
        report = PLACES[place](texts)
        client = Mock(spec=["log_metric", "log_text"])
        mlflow.log_report(report, client, "run1")
        made = as_report(report, [timeline(texts)])
        documents = {f"tracker {call.args[2]}": call.args[1] for call in client.log_text.call_args_list}
        documents |= {"html": made.to_html(), "md": made.to_markdown(), "json": made.to_json()}
        documents["terminal"] = terminal.render(redacted(report, Identity(), is_local=True), verbose=True)
        assert len(documents) == 7
        assert {name: left for name, text in documents.items() if (left := survivors(shapes, text))} == {}


def test_a_recorded_command_line_holds_no_token():
    tokens = [shape for shape in SHAPES if not re.search(r"[ /:~]", shape.text)]
    assert len(tokens) > 30  # the rest is no secret by itself, or is left out of what is shown
    for shape in tokens:
        for arguments in (["train.py", shape.text], ["train.py", "--x", shape.text], ["train.py", f"--x={shape.text}"]):
            written = " ".join(masked_arguments(arguments))
            assert not any(secret in written for secret in shape.secrets), shape.name


@pytest.mark.parametrize(("count", "found"), [(20, 0.93), (32, 0.985), (40, 0.99)])
def test_words_drawn_from_letters_and_digits_are_found(count, found):
    draw = random.Random(count)
    words = ["".join(draw.choices(string.ascii_letters + string.digits, k=count)) for _ in range(2000)]
    assert sum(masked(f"of {word} x") == f"of {MASK} x" for word in words) > found * len(words)


@pytest.mark.parametrize(
    "name",
    [
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn",
        "_Z40fmha_cutlassB_f32_aligned_64x64_k64_sm80N22PyTorchMemEffAttention23AttentionBackwardKernelE",
        "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastINS0_13BinaryFunctorIfffE",
        "fmha_cutlassB_f32_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80>)",
        "Cijk_Ailk_Bljk_HHS_BH_Bias_AH_SAV_UserArgs_MT256x256x32_MI16x16x1_SN_1LDSB0_AFC1_AFEM1_ASEM1_CLR1_CADS0",
        "triton_red_fused__native_batch_norm_legit_functional_add_12_0d1d2d3d4d5d6d7d8d9de10de11c12de13de14c15de",
        "/tmp/torchinductor_x/ab/c6z7xx2q7efd4xtp4h6d5a6dn4ulaj3kwyk7y3oyumh3hi6wwu74.py",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<Fp8KVCacheDataType>>>",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x128x64_stage3_warpsize2x2x1",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "MXFP8SynclessAllToAllExpertMajor, winogradForwardData4x4, miopenSp3AsmConv_v30_3_1_gfx9_fp16_dot2_edc",
        "commit 2d0b7a6e51, layers.0.self_attn.q_proj, jit(train)/Block_0/MLP/Dense_1/dot_general",
        "key: (query, key, value), num_tokens=512, max_tokens: 12, token_type_ids, forward pass: 12 ms",
    ],
)
def test_names_of_code_stay(name):
    assert masked(name) == name


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real traces beside the repository")
def test_no_name_of_a_real_trace_is_masked():
    files = [path for place in ("traces", "field/traces") for path in (SHARED / place).rglob("*.json.gz")]
    name, seen = re.compile(rb'"name": ?"([^"\\]+)"'), set()
    for path in sorted(files, key=lambda path: path.stat().st_size)[:40]:
        seen |= set(name.findall(gzip.decompress(path.read_bytes())))
    names = [found.decode("utf-8", "replace") for found in seen]
    assert len(names) > 1000
    assert [found for found in names if masked(found) != found] == []
