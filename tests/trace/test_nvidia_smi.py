"""Logs of nvidia-smi: every dialect to the same samples, and nothing that was not measured to 0."""

import gzip

import pytest
from log_recipes import SAMPLES, gpus, smi

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.readers import nvidia_smi
from profilerkit.formats.registry import reader_of
from profilerkit.formats.smi_columns import column, time_ns

MIB = 1 << 20
NOON_NS = 1_795_348_800 * 1_000_000_000  # 2026-11-22 12:00 UTC


def read(tmp_path, text, name="gpu.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert reader_of(path, "log") is nvidia_smi
    return nvidia_smi.read(path)


def of(log, field, gpu=0):
    return [getattr(sample.gpu, field) for sample in log.gpus[gpu].samples]


def test_values_with_units_become_ours_by_device(tmp_path):
    log = read(tmp_path, SAMPLES)
    assert [(gpu.label, gpu.index, gpu.model) for gpu in log.gpus] == [
        ("GPU 0", 0, "NVIDIA A100"),
        ("GPU 1", 1, "NVIDIA A100"),
    ]
    assert of(log, "utilization_ratio") == [pytest.approx(0.98), 1.0]
    assert of(log, "memory_used_bytes") == [1129 * MIB, 2048 * MIB]
    assert of(log, "memory_total_bytes", 1) == [40960 * MIB] * 2
    assert of(log, "power_mw") == [33_090, 250_000]
    assert of(log, "temperature_c", 1) == [42, 44]
    assert [sample.t_ns - NOON_NS for sample in log.gpus[0].samples] == [100_000_000, 1_100_000_000]
    assert log.clock == "no zone"


def test_what_was_not_measured_is_none_and_never_zero(tmp_path):
    log = read(tmp_path, SAMPLES)
    assert of(log, "utilization_ratio", 1) == [None, 0.5]
    assert of(log, "power_mw", 1) == [None, None]
    assert of(log, "sm_clock_mhz") == [None, None]
    assert not log.notes


def test_units_in_the_header_alone_and_no_units_mean_the_same(tmp_path):
    header, *rows = SAMPLES.splitlines()
    for unit in (" %", " MiB", " W"):
        rows = [row.replace(unit, "") for row in rows]
    bare = [name.split(" [")[0] for name in header.split(", ")]
    want = read(tmp_path, SAMPLES)
    assert read(tmp_path, "\n".join([header, *rows, ""])) == want
    assert read(tmp_path, "\n".join([", ".join(bare), *rows, ""])) == want


def test_a_header_at_each_sample_is_no_sample(tmp_path):
    log = read(tmp_path, "utilization.gpu [%]\n85 %\nutilization.gpu [%]\n100 %\n")
    assert of(log, "utilization_ratio") == [0.85, 1.0]
    assert log.clock == "none"
    assert any("no times" in note for note in log.notes)
    assert any("names no device" in note for note in log.notes)


def test_a_printed_table_before_the_header_and_zeros_of_an_emptied_file_are_skipped(tmp_path):
    table = "Sun Nov 21 14:02:20 2021\n+---+\n| NVIDIA-SMI 495.44  |\n" + "|  0  Tesla V100 |\n" * 60
    text = f"{table}index, utilization.gpu [%]\n0, 5 %\n" + "\0" * 9_000 + "0, 90 %\n" + "\0" * 17 + "0, 50 %\n"
    assert of(read(tmp_path, text), "utilization_ratio") == [0.05, 0.9, 0.5]


def test_names_of_ones_own_are_known_with_their_units(tmp_path):
    header = "timestamp,gpu_index,temperature_C,utilization_gpu_percent,power_W"
    text = f"{header}\n2025-09-24T03:48:33.493Z,1, 60, 100, 422.55\n"
    log = read(tmp_path, text)
    assert log.clock == "utc"
    assert log.gpus[0].label == "GPU 1"
    assert (of(log, "temperature_c"), of(log, "power_mw")) == ([60], [422_550])


@pytest.mark.parametrize(
    ("text", "ns", "zoned"),
    [
        ("2026/11/22 12:00:00", NOON_NS, False),
        ("2026/11/22 12:00:00.250", NOON_NS + 250_000_000, False),
        ("2026-11-22T12:00:00Z", NOON_NS, True),
        ("2026-11-22T13:00:00+01:00", NOON_NS, True),
        ("20261122 12:00:00", NOON_NS, False),
        (str(NOON_NS // 10**9), NOON_NS, True),
        (str(NOON_NS // 10**6), NOON_NS, True),
    ],
)
def test_times_count_from_the_epoch_and_say_whether_they_name_their_zone(text, ns, zoned):
    assert time_ns(text) == (ns, zoned)


@pytest.mark.parametrize(
    "text", ["", "12:00:00", "yesterday", "-1", "5", "1e400", "nan", "2026-13-45 99:99:99", "0001-01-01"]
)
def test_what_is_no_time_is_none(text):
    assert time_ns(text) is None


def test_devices_without_a_name_are_told_by_their_place_among_the_rows_of_a_time(tmp_path):
    rows = [(f"2026-11-22 12:00:0{second}", f"{use} %") for second in range(5) for use in (10, 90)]
    log = read(tmp_path, smi(rows, columns="timestamp, utilization.gpu [%]"))
    assert [of(log, "utilization_ratio", gpu) for gpu in (0, 1)] == [[0.1] * 5, [0.9] * 5]
    assert any("GPU 0 to 1" in note for note in log.notes)


def test_two_samples_within_one_second_are_no_two_devices(tmp_path):
    rows = [(second, "10 %") for second in (1762903990, 1762903991, 1762903991, 1762903992)]
    log = read(tmp_path, smi(rows, columns="timestamp, utilization.gpu [%]"))
    assert len(log.gpus) == 1
    assert len(log.gpus[0].samples) == 4


def test_devices_are_told_by_uuid_and_hostile_names_stay_text(tmp_path):
    text = "uuid, utilization.gpu [%]\nGPU-aaaa, 1 %\nGPU-bbbb, 2 %\n<script>, 3 %\n"
    assert [gpu.label for gpu in read(tmp_path, text).gpus] == ["GPU-aaaa", "GPU-bbbb", "<script>"]


def test_dmon_has_short_names_with_another_meaning(tmp_path):
    text = (
        "# gpu   pwr gtemp mtemp    sm   mem    fb  mclk  pclk pviol tviol rxpci\n"
        "# Idx     W     C     C     %     %    MB   MHz   MHz     % bool  MB/s\n"
        "    0   300    60     -    98    20  1024  1215  1410     7     1     5\n"
        "    1     -    41     -     0     0     1  1215   210     0     0     0\n"
        "# gpu   pwr gtemp mtemp    sm   mem    fb  mclk  pclk pviol tviol rxpci\n"
        "# Idx     W     C     C     %     %    MB   MHz   MHz     % bool  MB/s\n"
        "    0   310    61     -    99    21  1024  1215  1410     7     0     5\n"
    )
    log = read(tmp_path, text, "dmon.txt")
    assert [len(gpu.samples) for gpu in log.gpus] == [2, 1]
    first = log.gpus[0].samples[0].gpu
    assert (first.power_mw, first.temperature_c, first.sm_clock_mhz, first.memory_clock_mhz) == (
        300_000,
        60,
        1410,
        1215,
    )
    assert (first.utilization_ratio, first.memory_utilization_ratio) == (0.98, 0.2)
    assert (first.power_throttle_ratio, first.sw_thermal_throttle_ratio) == (pytest.approx(0.07), 1.0)
    assert (first.memory_used_bytes, first.pcie_rx_bytes_per_s) == (1024 * MIB, 5_000_000)
    assert log.gpus[1].samples[0].gpu.power_mw is None


def test_dmon_with_dates_has_times(tmp_path):
    text = "#Date       Time        gpu   pwr\n#YYYYMMDD   HH:MM:SS    Idx     W\n 20261122   12:00:01      0   300\n"
    log = read(tmp_path, text)
    assert log.gpus[0].samples[0].t_ns == NOON_NS + 1_000_000_000
    assert log.clock == "no zone"


def test_reasons_for_a_lower_clock_are_bits_from_one_column_or_from_many(tmp_path):
    text = "index, clocks.sm [MHz], clocks_throttle_reasons.active\n0, 1000 MHz, 0x0000000000000044\n"
    assert of(read(tmp_path, text), "throttle_reasons") == [0x44]
    text = (
        "index, clocks.sm [MHz], clocks_event_reasons.sw_power_cap, clocks_event_reasons.hw_thermal_slowdown\n"
        "0, 1000 MHz, Active, Not Active\n0, 1000 MHz, Not Active, Not Active\n"
    )
    assert of(read(tmp_path, text), "throttle_reasons") == [0x4, 0]


def test_a_last_line_that_is_cut_off_is_left_out_and_a_cut_number_is_not_read(tmp_path):
    whole = gpus(40, seconds=3)
    cut_line = read(tmp_path, whole[: whole.rindex(",") - 4])
    assert len(cut_line.gpus[0].samples) == 2
    assert "The log's last line is cut off and was left out." in cut_line.notes
    assert of(read(tmp_path, whole[:-5]), "power_mw") == [300_000, 300_000, None]


def test_damaged_lines_are_counted(tmp_path):
    log = read(tmp_path, SAMPLES + "2026/11/22 12:00:03, 0\nnonsense\n")
    assert "2 of the log's lines cannot be read and were left out." in log.notes


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("2026/11/22 12:00:00.100, 98 %, 1129 MiB, 40960 MiB\n", "no header"),
        ("+------+\n| NVIDIA-SMI 535.1   Driver Version: 535.1 |\n", "prints for people"),
        ("timestamp, utilization.gpu [%]\n", "no samples"),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_command_that_records_it(tmp_path, text, cause):
    path = tmp_path / "gpu.csv"
    path.write_text(text)
    assert reader_of(path, "log") is nvidia_smi
    with pytest.raises(UnreadableInputError) as caught:
        nvidia_smi.read(path)
    assert cause in caught.value.cause
    assert "--format=csv" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "step,loss,memory_used\n1,2.3,100\n",
        "time,utilization_gpu\n1,2\n",
        '{"traceEvents": [], "a": "utilization.gpu"}\n',
        "",
        "a, b\n1, 2\n",
        "\0" * 64,
    ],
)
def test_other_tables_are_none(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert reader_of(tmp_path / "a.csv", "log") is None


def test_a_compressed_log_is_read(tmp_path):
    assert len(read(tmp_path, gzip.compress(SAMPLES.encode())).gpus) == 2


def test_more_devices_than_a_host_has_are_left_out(tmp_path):
    log = read(tmp_path, smi([(0, gpu, "1 %", 30, "1 W") for gpu in range(200)]))
    assert len(log.gpus) == nvidia_smi.MOST_GPUS
    assert any("72 samples" in note for note in log.notes)


@pytest.mark.parametrize(
    "header", ["utilization.gpu [%]", "GPU Util (%)", "utilization_gpu_percent", "gpu-utilization"]
)
def test_a_name_reads_the_same_with_dots_dashes_and_units(header):
    known = column(header)
    assert known.field == "utilization_ratio"
    assert column("loss") is None


def test_the_text_of_dcgmi_dmon_is_read_with_its_own_names(tmp_path):
    text = """\
#Entity   GPUTL  FBUSD   POWER       TMPTR  SMACT
ID        %      MiB     W           C
GPU 0     98     40000   387.26      61     0.912
GPU 1     12     1000    90.10       40     N/A
#Entity   GPUTL  FBUSD   POWER       TMPTR  SMACT
ID        %      MiB     W           C
GPU 0     97     40000   386.26      61     0.911
"""
    log = read(tmp_path, text, "dcgm.txt")
    assert [(gpu.label, len(gpu.samples)) for gpu in log.gpus] == [("GPU 0", 2), ("GPU 1", 1)]
    assert of(log, "utilization_ratio") == [pytest.approx(0.98), pytest.approx(0.97)]
    assert of(log, "memory_used_bytes", 1) == [1000 * MIB]
    assert of(log, "power_mw") == [387_260, 386_260]
    assert (of(log, "sm_active_ratio"), of(log, "sm_active_ratio", 1)) == ([0.912, 0.911], [None])
    assert not any("cannot be read" in note for note in log.notes)
