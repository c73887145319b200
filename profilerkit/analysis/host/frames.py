"""What a Python frame does, read from its name as the profiler writes it: ``file.py(12): name`` or ``<built-in …>``.

The words are those of the libraries that training loops use; a frame they do not name says nothing.
"""

import re

#: Where the same builtin of another object would be another name.
_OBJECT = " object at 0x"
_FRAME = re.compile(r"\.py\(\d+\): |^<")
_CODE = re.compile(r"\.py\(\d+\): ")

#: Inside a fetch: what the innermost named frame or operator is about, in the order in which they are tried.
_FEEDING: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "input.ipc",
        re.compile(
            r"^aten::(?:_?stack|_?cat|_?pin_memory|concat(?:enate)?)$"
            r"|collat(?:e|or)\w*\.py\(|\): \w*collat(?:e|or)\w*$|pin_memory"
            r"|multiprocessing/reductions?\.py|\): _?rebuild_\w+$|pickle|<built-in function loads>",
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
            r"|webdataset/(?:gopen|tariterators|cache)\.py|pyarrow/(?:fs|parquet|dataset|ipc)",
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
            r"|blur|GaussianBlur|copyMakeBorder|zoom_shift|geometric_transform|encode|decode\w*|decompress\w*)>",
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


def is_frame(text: str) -> bool:
    """Whether a name is that of a Python frame.

    >>> is_frame("train.py(3): step"), is_frame("<built-in function open>"), is_frame("aten::add")
    (True, True, False)
    """
    return _FRAME.search(text) is not None


def runs_python(text: str) -> bool:
    """Whether a frame is Python code, which computes as long as no builtin runs inside it."""
    return _CODE.search(text) is not None


def without_object(text: str) -> str:
    """The name without the address of the object a builtin belongs to."""
    return text.partition(_OBJECT)[0]


def feeding_part(text: str) -> str | None:
    """The input leaf a frame or operator inside a fetch is about, ``None`` if its name does not say.

    >>> [feeding_part(name) for name in ("PIL/ImageFile.py(189): load", "<built-in function open>", "aten::stack")]
    ['input.prep', 'input.fetch', 'input.ipc']
    """
    return next((part for part, pattern in _FEEDING if pattern.search(text)), None)


def phase_of_frame(text: str) -> str | None:
    """The leaf of a frame that saves, evaluates or logs, ``None`` for others."""
    return next((part for part, pattern in _PHASES if pattern.search(text)), None)


def frame_feeds(text: str) -> bool:
    """Whether a frame's function is named for getting the next batch."""
    return _FEEDS.search(text) is not None


def offloads(text: str) -> bool:
    """Whether a frame or annotation is named for moving state between host and device."""
    return _OFFLOADS.search(text) is not None
