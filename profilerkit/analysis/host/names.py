"""What the names of a trace's host events and Python frames mean, and which thread runs the training loop."""

import re
from collections.abc import Callable

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import by_wording, matching, named, wordings
from profilerkit.model.step import leaf
from profilerkit.rundir.layout import EVALUATION, INPUT_SPAN, PHASE_SPAN_PREFIX
from profilerkit.trace.classify import PHASES, Phase, phase_of
from profilerkit.trace.columns import I8, I64, WORK, Bools, Category, TraceColumns, kept, names_of

# The words are those of the libraries that training loops use; a frame they do not name says nothing.

#: Where the same builtin of another object would be another name.
_OBJECT = " object at 0x"
_FRAME = re.compile(r"\.py\(\d+\): |^<")
_CODE = re.compile(r"\.py\(\d+\): ")

#: Inside a fetch: what the innermost named frame or operator is about, in the order in which they are tried. No pattern
#: of a frame tells one number from another: each wording is read once.
_FEEDING: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "input.ipc",
        re.compile(
            r"^aten::(?:_?stack|_?cat|_?pin_memory|concat(?:enate)?)$"
            r"|collat(?:e|or)\w*\.py\(|\): \w*collat(?:e|or)\w*$|pin_memory"
            r"|multiprocessing/reductions?\.py|\): _?rebuild_\w+$|pickle|<built-in function loads>"
        ),
    ),
    (
        "input.fetch",
        re.compile(
            r"^<built-in function (?:open|open_code|fromfile|memmap|sleep|stat|scandir|listdir|pread|preadv)>"
            r"|^<built-in method (?:read\w*|recv\w*|seek) of (?:_io|mmap|_?ssl|_?socket|zipfile|h5py|lmdb|pyarrow)"
            r"|^<method '(?:read\w*|recv\w*)' of '(?:_io|mmap|_?ssl|_?socket)"
            r"|^numpy/lib/_?(?:npyio|format)\w*\.py|torch/serialization\.py\(\d+\): _?load|PIL/Image\.py\(\d+\): open$"
            r"|: (?:read_file|imread_raw)$"
            r"|(?:^|/)(?:h5py|lmdb|zarr|fsspec|s3fs|gcsfs|adlfs|boto3|botocore|urllib3?|requests|aiohttp|http|smart_open)/"
            r"|(?:^|/)(?:socket|ssl|tarfile|zipfile|gzip|genericpath|posixpath|pathlib)\.py\(|google/cloud/storage/"
            r"|webdataset/(?:gopen|tariterators|cache)\.py|pyarrow/(?:fs|parquet|dataset|ipc)"
        ),
    ),
    (
        "input.prep",
        re.compile(
            r"(?:^|/)(?:PIL|cv2|torchvision|torchaudio|albumentations|imgaug|skimage|scipy|numpy|pandas|sklearn|kornia"
            r"|tokenizers|transformers|sentencepiece|tiktoken|datasets|librosa|soundfile|audiomentations|decord|av"
            r"|monai|nibabel|torchio|turbojpeg|simplejpeg|imageio|torchdata|nltk|spacy)/"
            r"|^<(?:built-in )?(?:method|function) .*(?:numpy|PIL|_imaging|ImagingCore|ImagingDecoder|tokenizers"
            r"|sentencepiece|tiktoken|cv2|pandas|scipy)"
            r"|^<built-in function (?:im(?:read|decode)|resize|cvtColor|warpAffine|warpPerspective|remap|flip|rotate"
            r"|blur|GaussianBlur|copyMakeBorder|zoom_shift|geometric_transform|encode|decode\w*|decompress\w*)>"
        ),
    ),
)

#: A frame under which the device idles for what is no training.
_PHASES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "other.log",
        re.compile(
            r"(?:^|/)(?:logging|loguru|tqdm|wandb|tensorboard|tensorboardX|mlflow|comet_ml|neptune|clearml|rich)/"
            r"|(?:^|/)json/(?:__init__|encoder)\.py\(|^<built-in function print>$"
        ),
    ),
    (
        "other.ckpt",
        re.compile(
            r"torch/serialization\.py\(\d+\): _?(?:legacy_)?(?:save|load)$|safetensors/.*\): save\w*$"
            r"|torch/distributed/checkpoint/.*\): _?(?:async_)?(?:save|write_data)\w*$"
            r"|\): _?(?:save|write|dump|load)_(?:checkpoint|pretrained|model|state|snapshot)\w*$"
        ),
    ),
    (
        "other.eval",
        re.compile(
            r"\): _?(?:run_|do_)?(?:evaluate|evaluation|validate|validation)(?:_loop|_epoch|_model)?$"
            r"|\): (?:eval_epoch|val_epoch|run_eval|do_eval|estimate_loss)$"
        ),
    ),
)

_FEEDS = re.compile(
    r"\): _?(?:get|next|load|fetch|sample|make|prepare|build)_(?:(?:train(?:ing)?|data|host|mini|micro|random)_?)?"
    r"batch(?:es)?$|\): \w*collat(?:e|or)\w*$"
    r"|(?:load|data|batch|stream)[^/]*\.py\(\d+\): __next__$|(?:^|/)(?:nvidia/dali|webdataset|ffcv)/.*\): __next__$"
)
_OFFLOADS = re.compile(
    r"offload|\): (?:pack_to|unpack_from)_cpu$|cpu_adam|swap_(?:in|out)|(?:^|/)accelerate/hooks\.py\("
    r"|torch/nn/modules/module\.py\(\d+\): _apply$",
    re.IGNORECASE,
)


class Frame(msgspec.Struct, frozen=True):
    """What one name says, read as a frame's; leaves are indices, -1 for none."""

    feeding: int  #: inside a fetch, the input leaf that it is about; operators have one too
    phase: int  #: the leaf of a frame that saves, evaluates or logs
    feeds: bool  #: its function is named for getting the next batch
    runs_python: bool  #: it is Python code, which computes as long as no builtin runs inside it
    offloads: bool  #: it is named for moving state between host and device, as annotations may be too

    @classmethod
    def of(cls, text: str) -> "Frame":
        """Read a name.

        >>> from profilerkit.model.step import LEAVES
        >>> names = ("PIL/ImageFile.py(189): load", "<built-in function open>", "aten::stack")
        >>> [LEAVES[Frame.of(name).feeding] for name in names], [Frame.of(name).runs_python for name in names]
        (['input.prep', 'input.fetch', 'input.ipc'], [True, False, False])
        """
        is_frame = _FRAME.search(text) is not None
        return cls(
            feeding=next((leaf(part) for part, pattern in _FEEDING if pattern.search(text)), -1),
            phase=next((leaf(part) for part, pattern in _PHASES if is_frame and pattern.search(text)), -1),
            feeds=is_frame and _FEEDS.search(text) is not None,
            runs_python=is_frame and _CODE.search(text) is not None,
            offloads=_OFFLOADS.search(text) is not None,
        )


BLOCKING_CALL_NS = 10_000  #: a call shorter than this did not wait for the device
BATCH_COPY_BYTES = 64 * 1024  #: copies below this size are scalars and masks, not batches
#: A stretch without any host event longer than this is the user's Python, not the gap between two operators.
QUIET_NS = 1_000_000

_DATALOADER = re.compile(r"^enumerate\(DataLoader\)#.*__next__|^" + re.escape(INPUT_SPAN))
_SINGLE_PROCESS = re.compile(r"^enumerate\(DataLoader\)#_SingleProcess")
_MULTI_PROCESS = re.compile(r"^enumerate\(DataLoader\)#_MultiProcess")
#: A name made of these words alone, with one of the first kind, is about the next batch; ``load checkpoint`` is not.
_FED_WORD = re.compile(r"data(?:set|loader|loading)?|inputs?|batch(?:es)?|loader")
_FEEDING_WORD = re.compile(
    r"load(?:ing)?|get|next|wait|for|(?:pre)?fetch(?:ing)?|read(?:ing)?|prepar(?:e|ing|ation)|pipeline|copy|to|gpu|cuda"
    r"|device|the|a|new|train(?:ing)?"
)
#: A phase may be named with one of these alone.
_FEEDING_PHASE = re.compile(r"load(?:ing)?|(?:pre)?fetch(?:ing)?", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+")
#: Longer names are no frames of Python; searching them would only take time.
_LONGEST_FRAME = 300
_ALLOCATOR = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|MallocHost|FreeHost|HostRegister|HostUnregister)"
    r"|^cuMem(?:Create|Map|Unmap|Release|AddressReserve|AddressFree|SetAccess|Alloc|Free)"
)
_SYNC_CALL = re.compile(
    r"^(?:cuda|hip)(?:Device|Stream|Event)Synchronize|^cu(?:Ctx|Stream|Event)Synchronize|^(?:cuda|hip)Memcpy(?:WithStream)?$"
)
_COPY_CALL = re.compile(r"^(?:cuda|hip|cu)Memcpy")
_COMPILE = re.compile(
    r"dynamo_timed|entire_(?:frame|backward)_compile|backend_compile|compile_inner|^dynamo$|^inductor_codecache"
)
#: Operators that allocate, look at memory in another shape, or read one value. None of them makes a batch.
_MOVES_NO_DATA = re.compile(
    r"^(?:aten::)?(?:empty|new_empty|detach|alias|view|_?reshape|as_strided|_?unsafe_view|expand|t$|transpose|permute"
    r"|movedim|flatten|squeeze|unsqueeze|slice|select|narrow|split|chunk|unbind|resolve_(?:conj|neg)"
    r"|item|_local_scalar_dense|is_nonzero)(?:_|$)"
)
#: Operators that hand the value of a tensor to Python.
_READS = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$")
#: How torch marks a step of an optimizer.
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_BACKWARD = re.compile(r"^autograd::engine")
_NAMED = re.compile("^" + re.escape(PHASE_SPAN_PREFIX))
#: ``gc.collect`` called by the user is a builtin, which a stack names without its module.
_GC = re.compile(r"gc\.collect|^Python GC|^<built-in function collect>$")
_KEEPS = re.compile(r"save|load", re.IGNORECASE)
_ANNOTATIONS = (
    (
        "other.ckpt",
        re.compile(r"checkpoint|torch\.(?:save|load)|(?<![a-z])(?:save|load)_(?:model|state|weights)|^save\b", re.I),
    ),
    ("other.eval", EVALUATION),
    ("other.log", re.compile(r"\blog(?:ging)?\b", re.IGNORECASE)),
)


class HostNames(msgspec.Struct, frozen=True):
    """What the names of a trace's events stand for on the host: arrays over ``columns.strings``, computed once."""

    timed: Bools  #: capture's own mark around a fetch of the training loop
    loader: Bools  #: the loop gets its next batch: the loader's own events, and phases that the user named so
    multi_process: Bools  #: of these, the ones whose batches come from worker processes
    single_process: Bools  #: of these, the ones that prepare the batch on the spot
    feeds: Bools  #: annotations and frames named for getting a batch, to be believed where they issue no other work
    feeding: I8
    moves_no_data: Bools
    reads: Bools
    runs_python: Bools
    offloads: Bools
    optimizer: Bools
    backward: Bools
    allocator: Bools
    sync_call: Bools
    copy_call: Bools
    compiles: Bools
    collects: Bools
    annotation: I8  #: leaf of a phase, -1 for none
    frame_phase: I8
    named: Bools  #: phases that the user named for what is no training: checkpoint, evaluation, logging

    @property
    def keeps_state(self) -> Bools:
        """Phases and frames that save or load a checkpoint."""
        keeps: Bools = (self.annotation == leaf("other.ckpt")) | (self.frame_phase == leaf("other.ckpt"))
        return keeps

    @classmethod
    def of(cls, columns: TraceColumns) -> "HostNames":
        """Classify every name of the host's events once."""
        used = names_of(columns, *(known for known in Category if known not in WORK))
        annotation = by_wording(columns, used, _annotation_leaf)
        feeding, frame_phase, *marks = _frames(columns, used)
        feeds, runs_python, offloads = (mark > 0 for mark in marks)

        def worded(says: Callable[[str], bool]) -> Bools:
            return by_wording(columns, used, says, 0).astype(np.bool_)

        def mask(pattern: re.Pattern[str]) -> Bools:
            return matching(columns, used, pattern)

        return cls(
            timed=worded(INPUT_SPAN.__eq__),
            loader=mask(_DATALOADER) | worded(_is_feeding_phase),
            multi_process=mask(_MULTI_PROCESS),
            single_process=mask(_SINGLE_PROCESS),
            feeds=feeds | worded(_names_feeding),
            feeding=feeding,
            moves_no_data=mask(_MOVES_NO_DATA),
            reads=mask(_READS),
            runs_python=runs_python,
            offloads=offloads,
            optimizer=mask(_OPTIMIZER) | phase_names(columns, "optimizer"),
            backward=mask(_BACKWARD),
            allocator=mask(_ALLOCATOR),
            sync_call=mask(_SYNC_CALL),
            copy_call=mask(_COPY_CALL),
            compiles=mask(_COMPILE),
            collects=mask(_GC),
            annotation=annotation,
            frame_phase=frame_phase,
            named=mask(_NAMED) & np.isin(annotation, [leaf(part) for part, _ in _ANNOTATIONS]),
        )


def _frames(columns: TraceColumns, used: I64) -> I8:
    """``(n_fields, n_strings)`` int8 of ``Frame``, -1 for what is not ``used``; each wording is read once.

    The addresses of the objects that builtins belong to are many, the functions few.
    """
    texts, place = wordings(columns)
    worded = np.flatnonzero(np.bincount(place[used], minlength=len(texts)))
    known: dict[str, int] = {}
    plain = [texts[index][:_LONGEST_FRAME].partition(_OBJECT)[0] for index in worded.tolist()]
    of = [known.setdefault(text, len(known)) for text in plain]
    fields, out = (np.full((len(Frame.__struct_fields__), len(of)), -1, np.int8) for of in (texts, columns.strings))
    if known:
        fields[:, worded] = np.array([msgspec.structs.astuple(Frame.of(text)) for text in known])[of].T
        out[:, used] = fields[:, place[used]]
    return out


def _names_feeding(text: str) -> bool:
    """Whether a name, all its words considered, says that data is got ready for the step.

    >>> [_names_feeding(text) for text in ("get_batch", "Data loading", "load checkpoint", "batch norm", "load")]
    [True, True, False, False, False]
    """
    words = set(_WORD.findall(text[:_LONGEST_FRAME].lower()))
    fed = {word for word in words if _FED_WORD.fullmatch(word)}
    return bool(fed) and all(_FEEDING_WORD.fullmatch(word) for word in words - fed)


def phase_names(columns: TraceColumns, phase: Phase) -> Bools:
    """``(n_strings,)`` names of the ranges that the program put around a phase of its step."""
    found: Bools = _phases(columns) == PHASES.index(phase)
    return found


@kept
def _phases(columns: TraceColumns) -> I8:
    """``(n_strings,)`` place in ``PHASES`` of what each name of a range says, -1 for none."""

    def place(text: str) -> int:
        phase = phase_of(text)
        return -1 if phase is None else PHASES.index(phase)

    return by_wording(columns, names_of(columns, Category.ANNOTATION), place)


def is_feeding_phase(name: str) -> bool:
    """Whether a phase that the user named is about getting the next batch: ``data``, ``load``, ``fetch`` and the like.

    >>> is_feeding_phase("load"), is_feeding_phase("load checkpoint")
    (True, False)
    """
    return _FEEDING_PHASE.fullmatch(name.strip()) is not None or _names_feeding(name)


def _is_feeding_phase(text: str) -> bool:
    return text.startswith(PHASE_SPAN_PREFIX) and is_feeding_phase(text.removeprefix(PHASE_SPAN_PREFIX))


def phase_leaf(name: str) -> int:
    """The leaf of a phase the user named: checkpoint, evaluation and logging are known by their words."""
    for part, pattern in _ANNOTATIONS:
        if pattern.search(name):
            return leaf(part)
    return leaf("other.phase")


def _annotation_leaf(text: str) -> int:
    """The leaf of an annotation, -1 if it names no phase."""
    if text.startswith(PHASE_SPAN_PREFIX):
        name = text.removeprefix(PHASE_SPAN_PREFIX)
        return -1 if is_feeding_phase(name) else phase_leaf(name)
    if text.startswith(("enumerate(DataLoader)", "ProfilerStep#", "Optimizer.", INPUT_SPAN)):
        return -1
    found = phase_leaf(text)
    # Activation checkpointing names its ranges alike: only a checkpoint that is saved or loaded is one.
    recompute = found == leaf("other.ckpt") and not _KEEPS.search(text)
    return -1 if recompute or found == leaf("other.phase") else found


_MARKS = re.compile(r"^(?:ProfilerStep#|enumerate\(DataLoader\)#|Optimizer\.)")


@kept
def main_thread(columns: TraceColumns) -> int:
    """Return the thread that runs the training loop: the owner of most step markers, host operators or named ranges.

    -1 when the trace holds no host event.
    """
    marks = columns.category == Category.ANNOTATION
    if marks.any():
        marked = columns.thread[named(columns, _MARKS, Category.ANNOTATION)]
        if len(marked):
            return int(np.bincount(marked).argmax())
    host = columns.thread[columns.is_a(Category.CPU_OP, Category.RUNTIME)]
    host = host if len(host) else columns.thread[marks]
    return int(np.bincount(host).argmax()) if len(host) else -1


def backward_threads(columns: TraceColumns, names: HostNames, main: int) -> I64:
    """Ids of the threads beside ``main`` that run the backward pass, sorted."""
    rows = np.flatnonzero((columns.category == Category.CPU_OP) & (columns.thread != main))
    found: I64 = np.unique(columns.thread[rows[names.backward[columns.name[rows]]]]).astype(np.int64)
    return found
