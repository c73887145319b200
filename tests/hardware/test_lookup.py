import doctest
import json
from pathlib import Path

import pytest

from profilerkit import hardware as lookup_module
from profilerkit.hardware import is_by_amd, known_names, lookup

SPECS = {name: lookup(name) for name in known_names()}

# Published with 2:4 sparsity, by part and type: none of them may stand in the table as a dense figure.
SPARSE = {
    "a10": {"fp16_tflops": 250, "tf32_tflops": 125},
    "a100-sxm-80gb": {"bf16_tflops": 624, "fp16_tflops": 624, "tf32_tflops": 312},
    "a100-pcie-80gb": {"bf16_tflops": 624, "fp16_tflops": 624, "tf32_tflops": 312},
    "l4": {"bf16_tflops": 242, "fp16_tflops": 242, "tf32_tflops": 120, "fp8_tflops": 485},
    "l40s": {"bf16_tflops": 733, "tf32_tflops": 366, "fp8_tflops": 1466},
    "a30": {"bf16_tflops": 330, "tf32_tflops": 165},
    "a40": {"bf16_tflops": 299.4, "tf32_tflops": 149.6},
    "a10g": {"bf16_tflops": 140, "tf32_tflops": 70},
    "l40": {"bf16_tflops": 362.1, "tf32_tflops": 181, "fp8_tflops": 724},
    "rtx-a5000": {"bf16_tflops": 222.2},
    "rtx-a6000": {"bf16_tflops": 309.7},
    "rtx-6000-ada": {"fp8_tflops": 1457},
    "h200-nvl": {"bf16_tflops": 1671, "fp8_tflops": 3341},
    "b300-sxm": {"bf16_tflops": 4500, "fp8_tflops": 9000},
    "gb300": {"bf16_tflops": 5000, "fp8_tflops": 10000},
    "mi300a": {"bf16_tflops": 1961.2, "fp8_tflops": 3922.3},
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
    ("AMD Instinct MI250X/MI250", "mi250x-gcd"),
    ("AMD Instinct MI250X / MI250", "mi250x-gcd"),
    ("AMD Instinct MI210", "mi210"),
    ("AMD Instinct MI300A", "mi300a"),
    ("AMD Instinct MI325X", "mi325x"),
    ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
    ("Tesla P100-SXM2-16GB", "p100-sxm2-16gb"),
    ("Tesla V100S-PCIE-32GB", "v100s-pcie-32gb"),
    ("NVIDIA T4G", "t4"),
    ("NVIDIA A10G", "a10g"),
    ("NVIDIA A30", "a30"),
    ("NVIDIA A40", "a40"),
    ("NVIDIA A800-SXM4-80GB", "a800-sxm-80gb"),
    ("NVIDIA A800 80GB PCIe", "a800-pcie-80gb"),
    ("NVIDIA L20", "l20"),
    ("NVIDIA L40", "l40"),
    ("GeForce RTX 2080 Ti", "rtx-2080-ti"),
    ("NVIDIA GeForce RTX 3060", "rtx-3060-12gb"),
    ("NVIDIA GeForce RTX 3070", "rtx-3070"),
    ("NVIDIA GeForce RTX 3080 Ti", "rtx-3080-ti"),
    ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
    ("NVIDIA GeForce RTX 4060", "rtx-4060"),
    ("NVIDIA GeForce RTX 4070", "rtx-4070"),
    ("NVIDIA GeForce RTX 4070 Ti", "rtx-4070-ti"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
    ("NVIDIA GeForce RTX 4080", "rtx-4080"),
    ("NVIDIA GeForce RTX 4080 SUPER", "rtx-4080-super"),
    ("NVIDIA GeForce RTX 5080", "rtx-5080"),
    ("NVIDIA RTX A5000", "rtx-a5000"),
    ("RTX A6000", "rtx-a6000"),
    ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
    ("Quadro RTX 6000", "quadro-rtx-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-blackwell-max-q"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server"),
    ("NVIDIA H20", "h20"),
    ("NVIDIA H20-3e", "h20-141gb"),
    ("NVIDIA H200 NVL", "h200-nvl"),
    ("NVIDIA H800", "h800-sxm"),
    ("NVIDIA H800 PCIe", "h800-pcie"),
    ("NVIDIA GH200 480GB", "gh200-96gb"),
    ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
    ("NVIDIA B300 SXM6 AC", "b300-sxm"),
    ("NVIDIA GB300", "gb300"),
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
        "NVIDIA RTX A4000 Laptop GPU",
        "NVIDIA PG509-232",
        "NVIDIA H100",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3080",
        "NVIDIA RTX 6000",
        "NVIDIA A100-40C",
        "NVIDIA L40G",
        "NVIDIA B100",
        "AMD Instinct MI300",
        "AMD Radeon Graphics",
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


@pytest.mark.parametrize(
    ("device_name", "gib", "row"),
    [
        ("NVIDIA GeForce RTX 3080", 9.8, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 10, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16, "rtx-4060-ti-16gb"),
    ],
)
def test_the_memory_tells_rows_of_one_name_apart(device_name, gib, row):
    assert lookup(device_name, round(gib * 2**30)).name == row
    assert lookup(device_name) is None
    assert lookup(device_name, 24 * 2**30) is None


def test_rows_that_share_a_name_differ_in_memory():
    rows = list(lookup_module._table().values())
    for number, (names, spec) in enumerate(rows):
        for others, other in rows[number + 1 :]:
            assert not names & others or spec.memory_gb != other.memory_gb, (spec.name, other.name)


def test_fewer_multiprocessors_scale_the_arithmetic_and_not_the_memory():
    both = lookup("AMD Instinct MI250X/MI250", 68_702_699_520, 104)
    assert (both.bf16_tflops, both.fp32_tflops) == (pytest.approx(181.05, abs=0.01), pytest.approx(22.64, abs=0.01))
    assert (both.hbm_gb_per_s, both.tf32_tflops) == (1638.5, None)
    assert "104 of 110" in both.source
    assert lookup("NVIDIA H100 80GB HBM3", 85_028_634_624, 132) == lookup("NVIDIA H100 80GB HBM3")
    assert lookup("NVIDIA H100 80GB HBM3", 85_028_634_624, 144) is None


@pytest.mark.parametrize(
    ("device_name", "gib", "multiprocessors", "bf16_tflops", "gb_per_s"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4.75, 14, 312 * 14 / 108, 1555 / 8),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19.6, 42, 312 * 42 / 108, 1555 / 2),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.75, 16, 989 * 16 / 132, 3350 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 19.6, 26, 989 * 26 / 132, 3350 / 4),
        ("NVIDIA H200 MIG 1c.3g.71gb", 69.5, 20, 989 * 20 / 132, 4800 / 2),
        ("NVIDIA A30 MIG 1g.6gb", 5.8, 14, 165 * 14 / 56, 933 / 4),
    ],
)
def test_a_slice_has_its_part_of_the_device(device_name, gib, multiprocessors, bf16_tflops, gb_per_s):
    found = lookup(device_name, round(gib * 2**30), multiprocessors)
    assert (found.bf16_tflops, found.hbm_gb_per_s) == (pytest.approx(bf16_tflops), pytest.approx(gb_per_s))
    assert (found.link_gb_per_s, found.name[-4:]) == (None, " MIG")
    assert lookup(device_name, round(gib * 2**30)) is None
    assert lookup(device_name, None, multiprocessors) is None


@pytest.mark.parametrize("name", SPECS)
def test_peaks_of_a_row_agree_with_each_other(name):
    spec = SPECS[name]
    assert spec.source
    assert 0.3 < spec.achievable_ratio < 1.0
    # P100 has no matrix units, and a RTX 5000 Ada little bandwidth.
    assert 25 < 1e3 * (spec.bf16_tflops or spec.fp16_tflops) / spec.hbm_gb_per_s < 460
    assert spec.multiprocessors
    if spec.bf16_tflops is not None:
        assert spec.bf16_tflops == spec.fp16_tflops
    # Vendors round each figure on its own; L40S is the worst row: 183 against 362 / 2, 733 against 2 x 362.
    if spec.tf32_tflops is not None:
        assert spec.tf32_tflops == pytest.approx(spec.bf16_tflops / 2, rel=0.0125)
    if spec.fp8_tflops is not None:
        assert spec.fp8_tflops == pytest.approx(2 * spec.bf16_tflops, rel=0.0125)
    # NVIDIA's vector units do 128 FMA per clock and multiprocessor from GA102 on, 64 before, on GA100 and on GP100.
    if spec.compute_capability is not None:
        fma = 64 if spec.compute_capability in {"6.0", "7.0", "7.5", "8.0"} else 128
        mhz = spec.fp32_tflops * 1e6 / (2 * fma * spec.multiprocessors)
        assert 1290 < mhz < 2625


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
        ("rtx-a6000", 1800, 128, 336),
        ("a40", 1740, 128, 336),
        ("a30", 1440, 256, 224),
        ("a10g", 1710, 64, 320),
        ("l40", 2490, 64, 568),
        ("rtx-6000-ada", 2505, 128, 568),
        ("rtx-pro-6000-blackwell", 2617, 128, 752),
        ("mi210", 1700, 128, 416),
        ("mi300a", 2100, 256, 912),
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
        "a100-pcie-40gb", "a100-pcie-80gb", "a800-pcie-80gb", "h100-pcie", "h800-pcie", "h100-nvl", "h200-nvl",
        "a30", "a40", "mi210", "rtx-3090", "rtx-a4500", "rtx-a5000", "rtx-a6000",
        "rtx-2080-ti", "titan-rtx", "quadro-rtx-6000", "quadro-rtx-8000"
    }  # fmt: skip
    assert all(lookup(name).link_gb_per_s for name in known_names() if lookup(name).link_is_optional)


def test_devices_of_amd_are_known_by_their_names():
    by_amd = {name for name, _ in NAMES if is_by_amd(name)}
    assert by_amd == {name for name, _ in NAMES if name.startswith("AMD")}
