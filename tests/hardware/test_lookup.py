import doctest
import json
from pathlib import Path

import pytest

from profilerkit.hardware import lookup as lookup_module
from profilerkit.hardware.lookup import known_names, lookup

SPECS = {name: lookup(name) for name in known_names()}

# Published with 2:4 sparsity, by part and type: none of them may stand in the table as a dense figure.
SPARSE = {
    "a10": {"fp16_tflops": 250, "tf32_tflops": 125},
    "a100-sxm-80gb": {"bf16_tflops": 624, "fp16_tflops": 624, "tf32_tflops": 312},
    "a100-pcie-80gb": {"bf16_tflops": 624, "fp16_tflops": 624, "tf32_tflops": 312},
    "l4": {"bf16_tflops": 242, "fp16_tflops": 242, "tf32_tflops": 120, "fp8_tflops": 485},
    "l40s": {"bf16_tflops": 733, "tf32_tflops": 366, "fp8_tflops": 1466},
    "rtx-a4000": {"bf16_tflops": 153.4, "fp16_tflops": 153.4, "tf32_tflops": 76.7},
    "rtx-3090": {"fp16_tflops": 285},
    "rtx-4090": {"fp16_tflops": 660.6, "fp8_tflops": 1321},
    "rtx-5090": {"fp16_tflops": 838.4, "fp8_tflops": 1676},
    "h100-pcie": {"bf16_tflops": 1513, "tf32_tflops": 756, "fp8_tflops": 3026},
    "h100-sxm": {"bf16_tflops": 1979, "fp16_tflops": 1979, "tf32_tflops": 989, "fp8_tflops": 3958},
    "h200-sxm": {"bf16_tflops": 1979, "fp16_tflops": 1979, "tf32_tflops": 989, "fp8_tflops": 3958},
    "b200-sxm": {"bf16_tflops": 4500, "fp16_tflops": 4500, "tf32_tflops": 2250, "fp8_tflops": 9000},
    "gb200": {"bf16_tflops": 5000, "tf32_tflops": 2500, "fp8_tflops": 10000},
    "mi300x": {"bf16_tflops": 2614.9, "fp16_tflops": 2614.9, "tf32_tflops": 1307.4, "fp8_tflops": 5229.8},
    "mi325x": {"bf16_tflops": 2614.9, "fp16_tflops": 2614.9, "tf32_tflops": 1307.4, "fp8_tflops": 5229.8},
}


NAMES = [
    ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    ("NVIDIA H100 PCIe", "h100-pcie"),
    ("NVIDIA H100 NVL", "h100-nvl"),
    ("NVIDIA H200", "h200-sxm"),
    ("NVIDIA B200", "b200-sxm"),
    ("NVIDIA GB200", "gb200"),
    ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
    ("NVIDIA A100-PG509-200", "a100-sxm-40gb"),
    ("NVIDIA PG509-210", "a100-sxm-80gb"),
    ("NVIDIA RTX A4000", "rtx-a4000"),
    ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
    ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
    ("Tesla V100-DGXS-32GB", "v100-sxm2-32gb"),
    ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
    ("Tesla T4", "t4"),
    ("NVIDIA A10", "a10"),
    ("NVIDIA L4", "l4"),
    ("NVIDIA L40S", "l40s"),
    ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ("AMD Instinct MI300X", "mi300x"),
    ("AMD Instinct MI250X", "mi250x-gcd"),
    ("h100-sxm", "h100-sxm"),
    ("H100-SXM", "h100-sxm"),
]


@pytest.mark.parametrize(("device_name", "row"), NAMES)
def test_names_that_torch_reports_are_found(device_name, row):
    assert lookup(device_name).name == row


@pytest.mark.parametrize(
    "device_name",
    [
        "",
        "NVIDIA",
        "NVIDIA A10G",
        "NVIDIA L40",
        "NVIDIA RTX A4000 Laptop GPU",
        "NVIDIA PG509-232",
        "NVIDIA H100",
        "NVIDIA H20",
        "NVIDIA GH200 480GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "Tesla V100S-PCIE-32GB",
        "AMD Radeon Graphics",
        "AMD Instinct MI300A",
        "ARTEMIS",
    ],
)
def test_other_parts_are_unknown_rather_than_guessed(device_name):
    assert lookup(device_name) is None


@pytest.mark.parametrize(
    ("device_name", "memory_bytes"),
    [
        ("NVIDIA A100-PG509-200", 42_505_273_344),
        ("NVIDIA PG509-210", 84_990_623_744),
        ("NVIDIA RTX A4000", 16_900_227_072),
        ("Tesla V100-DGXS-32GB", 34_084_028_416),
        ("Tesla V100-SXM2-16GB", 16_945_512_448),
        ("NVIDIA B200", 191_503_007_744),
        ("AMD Instinct MI300X", 206_141_652_992),
    ],
)
def test_memory_sizes_seen_in_real_traces_fit_their_row(device_name, memory_bytes):
    assert lookup(device_name, memory_bytes) is not None


def test_a_memory_size_of_another_part_makes_the_device_unknown():
    assert lookup("NVIDIA A100-PG509-200", 85_000_000_000) is None
    assert lookup("NVIDIA H100 80GB HBM3", 10_000_000_000) is None


def test_no_name_is_claimed_by_two_rows():
    for device_name, row in NAMES:
        claimed = [
            name
            for name, (patterns, _) in lookup_module._table().items()
            if name == device_name.lower() or any(pattern.fullmatch(device_name) for pattern in patterns)
        ]
        assert claimed == [row]


@pytest.mark.parametrize("name", SPECS)
def test_peaks_of_a_row_agree_with_each_other(name):
    spec = SPECS[name]
    assert spec.source
    assert 0.3 < spec.achievable_ratio < 1.0
    assert 60 < spec.ridge_flop_per_byte < 450
    if spec.bf16_tflops is not None:
        assert spec.bf16_tflops == spec.fp16_tflops
    # Vendors round each figure on its own; L40S is the worst row: 183 against 362 / 2, 733 against 2 x 362.
    if spec.tf32_tflops is not None:
        assert spec.tf32_tflops == pytest.approx(spec.bf16_tflops / 2, rel=0.0125)
    if spec.fp8_tflops is not None:
        assert spec.fp8_tflops == pytest.approx(2 * spec.bf16_tflops, rel=0.0125)


def test_ampere_and_later_have_bf16_and_older_parts_do_not():
    for name, spec in SPECS.items():
        if spec.compute_capability is not None:
            assert (spec.bf16_tflops is not None) == (float(spec.compute_capability) >= 8.0), name


@pytest.mark.parametrize(
    ("name", "mhz", "fma_per_clock", "units"),
    [
        ("h100-sxm", 1830, 512, 528),
        ("a100-sxm-80gb", 1410, 256, 432),
        ("rtx-a4000", 1560, 128, 192),
        ("mi300x", 2100, 256, 1216),
        ("mi250x-gcd", 1700, 128, 440),
    ],
)
def test_matrix_peak_is_clock_times_units(name, mhz, fma_per_clock, units):
    assert SPECS[name].bf16_tflops == pytest.approx(mhz * 1e6 * fma_per_clock * 2 * units / 1e12, rel=0.002)


@pytest.mark.parametrize("name", SPARSE)
def test_no_sparse_figure_is_sold_as_dense(name):
    for field, sparse_tflops in SPARSE[name].items():
        assert getattr(SPECS[name], field) < 0.75 * sparse_tflops


#: Names that real traces carry and no datasheet: any Radeon without a marketing name, and an inference chip.
NAMELESS = {"AMD Radeon Graphics", "ARTEMIS"}


def test_every_device_of_the_shared_traces_is_in_the_table_or_known_to_be_in_none():
    manifest = Path(__file__).parents[3] / "shared" / "traces" / "MANIFEST.json"
    if not manifest.exists():
        pytest.skip("the real traces are not beside the repository")
    sets = json.loads(manifest.read_text("utf-8"))["sets"].values()
    devices = {file["device"] for entry in sets for file in entry["files"]} - {None}
    assert len(devices) > 8
    assert {device for device in devices if lookup(device) is None} == NAMELESS


def test_achievable_ratio_says_whether_it_was_measured():
    assert (SPECS["h100-sxm"].achievable_ratio, SPECS["h100-sxm"].achievable_is_measured) == (0.803, True)
    assert (SPECS["t4"].achievable_ratio, SPECS["t4"].achievable_is_measured) == (0.75, False)


def test_examples_in_the_docstrings_hold():
    result = doctest.testmod(lookup_module, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 2
    assert result.failed == 0


def test_a_link_that_needs_a_bridge_is_no_part_of_every_card():
    assert {name for name in known_names() if lookup(name).link_is_optional} == {
        "a100-pcie-40gb", "a100-pcie-80gb", "h100-pcie", "h100-nvl", "rtx-3090"
    }  # fmt: skip
    assert all(lookup(name).link_gb_per_s for name in known_names() if lookup(name).link_is_optional)
