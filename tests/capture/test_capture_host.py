"""The host sampler against files of /proc and /sys of our own, and against this machine."""

import multiprocessing
import threading
import time

import pytest

from profilerkit.capture import host
from profilerkit.capture.host import ChildProcesses, HostSource, Traffic
from profilerkit.capture.proc_files import Cgroup, FreeMemory, ProcFiles, pressure_ns, quota_cores
from profilerkit.rundir.sampled import WorkerPages

SECOND = 10**9
TID = threading.get_native_id()
#: /proc/PID/stat with a name that tries to end early; 5 major faults, 2 s and 1 s of processor time, 300 pages.
STAT = "77 (a) R 9) S 1 77 77 0 -1 0 900 0 {faults} 0 {user} {system} 0 0 20 0 1 0 5 1000000 300 18446744073709551615\n"
LINUX = "needs Linux"
VOLUNTARY = "voluntary_ctxt_switches"


@pytest.fixture
def machine(tmp_path):
    """Writes files below a root: paths to what they say."""

    def write(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write


@pytest.fixture
def readings(machine, monkeypatch):
    """Samples a second apart of a machine whose files change between them."""

    def read(*states):
        clock = iter(SECOND * number for number in range(1, len(states) + 1))
        monkeypatch.setattr(host, "perf_counter_ns", lambda: next(clock))
        samples = []
        for state in states:
            root = machine(state)
            if not samples:
                source = HostSource(root)
                source.open()
            samples.append(source.read().host)
        source.close()
        return samples

    return read


def proc(cpu="100 0 100 700 100 0 0 0 0 0", available=600, more=None):
    """The least that a machine's /proc holds."""
    meminfo = f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
    return {"proc/stat": f"cpu  {cpu}\ncpu0 1 2\n", "proc/meminfo": meminfo, **(more or {})}


def test_processors_and_memory_of_the_machine(readings):
    loadavg = {"proc/loadavg": "1.72 1.14 1.07 3/101 25750\n"}
    first, second = readings(proc(more=loadavg), proc(cpu="140 0 120 725 110 0 0 5 40 0"))
    assert (first.cpu_ratio, first.running_tasks) == (None, 3)
    assert (second.cpu_ratio, second.iowait_ratio, second.steal_ratio) == (0.65, 0.1, 0.05)
    assert (second.memory_used_bytes, second.memory_total_bytes) == (400 * 1024, 1000 * 1024)
    assert second.swap_used_bytes == 30 * 1024


def test_time_that_runs_backwards_is_not_measured(readings):
    _, second = readings(proc(), proc(cpu="200 0 200 800 99 0 0 0 0 0"))
    assert second.cpu_ratio is None


def test_the_training_thread_waits_for_a_processor(readings):
    def state(queued_ns, switches, faults):
        return proc(
            more={
                f"proc/self/task/{TID}/schedstat": f"9 {queued_ns} 4\n",
                f"proc/self/task/{TID}/status": f"RssFile:\t 7 kB\n{VOLUNTARY}:\t7\nnon{VOLUNTARY}:\t{switches}\n",
                f"proc/self/task/{TID}/stat": STAT.format(faults=0, user=200 + faults, system=100 + switches // 6),
                "proc/self/stat": STAT.format(faults=faults, user=200, system=100),
                "proc/self/io": "rchar: 5\nread_bytes: 70\nwrite_bytes: 80\ncancelled_write_bytes: 1\n",
            }
        )

    first, second = readings(state(0, 10, 5), state(SECOND // 4, 60, 25))
    assert first.thread_queue_ratio is None
    assert (second.thread_queue_ratio, second.thread_preemptions_per_s) == (0.25, 50)
    assert (second.process_major_faults_per_s, second.read_bytes, second.write_bytes) == (20, 70, 80)
    assert second.process_rss_bytes % 300 == 0
    assert second.process_file_bytes == 7 * 1024
    # 0.2 s in user mode and 9 ticks in the kernel; the count of faults did not change.
    assert (second.thread_faults_per_s, second.thread_system_ratio, second.thread_cpu_ratio) == (0, 0.09, 0.29)


def test_the_busiest_thread_of_the_pool_waits_for_a_processor(readings):
    def state(ran, queued, idle):
        files = {
            f"proc/self/task/{TID}/schedstat": f"0 {queued * 3} 4\n",
            "proc/self/task/1/schedstat": f"{idle} 0 1\n",
        }
        return proc(more={**files, "proc/self/task/2/schedstat": f"{ran} {queued} 4\n"})

    first, second = readings(state(5, 7, 0), state(5 + SECOND // 2, 7 + SECOND // 4, SECOND // 10))
    assert (first.pool_queue_ratio, second.pool_queue_ratio) == (None, 0.25)


def test_without_a_pool_nothing_is_said_of_its_queue(readings):
    alone = proc(more={f"proc/self/task/{TID}/schedstat": "0 9 4\n"})
    assert [sample.pool_queue_ratio for sample in readings(alone, alone)] == [None, None]


def test_pressure_is_a_share_of_the_time_between_two_samples(readings):
    def state(total_us):
        return proc(more={"proc/pressure/io": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n"})

    first, second = readings(state(1_000), state(251_000))
    assert (first.io_pressure_ratio, second.io_pressure_ratio) == (None, 0.25)
    assert second.cpu_pressure_ratio is None


def test_pressure_is_the_total_of_the_some_line():
    assert pressure_ns("some avg10=0.00 avg60=1.00 total=1234\nfull avg10=0.00 total=9\n") == 1_234_000
    assert pressure_ns("full avg10=0.00 total=9\n") is None
    assert pressure_ns("") is None
    assert pressure_ns("some avg10=0.00 total=x\n") is None


def test_without_proc_files_nothing_is_said_of_the_machine(tmp_path):
    source = HostSource(tmp_path)
    source.open()
    sample = source.read().host
    source.close()
    assert (sample.memory_total_bytes, sample.read_bytes, sample.cpu_pressure_ratio) == (None, None, None)


V2 = {"sys/fs/cgroup/cgroup.controllers": "cpu memory\n", "proc/self/cgroup": "0::/slice/job/task\n"}
TASK, JOB = "sys/fs/cgroup/slice/job/task", "sys/fs/cgroup/slice/job"


def test_limits_of_any_level_around_the_process_count(machine):
    files = {
        **V2,
        f"{TASK}/cpu.stat": "usage_usec 0\n",
        f"{TASK}/memory.max": "max\n",
        f"{TASK}/memory.current": "10\n",
        f"{JOB}/cpu.max": "150000 100000\n",
        f"{JOB}/cpu.stat": "usage_usec 1000\nthrottled_usec 500\n",
        f"{JOB}/memory.max": "4096\n",
        f"{JOB}/memory.current": "4000\n",
        f"{JOB}/memory.events": "low 0\noom 3\noom_kill 2\n",
        f"{JOB}/memory.pressure": "some avg10=0.00 total=0\n",
        "sys/fs/cgroup/slice/memory.max": "8192\n",
    }
    root = machine(files)
    assert quota_cores(root) == 1.5
    opened = ProcFiles(root)
    cgroup = Cgroup(opened)
    first = cgroup.read(SECOND)
    assert (first["cgroup_cpu_cores"], first["cpu_throttled_ratio"]) == (None, None)
    assert (first["cgroup_memory_bytes"], first["cgroup_memory_max_bytes"], first["cgroup_oom_kills"]) == (
        4000,
        4096,
        2,
    )
    machine({f"{JOB}/cpu.stat": "usage_usec 1201000\nthrottled_usec 250500\n"})
    machine({f"{JOB}/memory.pressure": "some avg10=0.00 total=100000\n"})
    second = cgroup.read(2 * SECOND)
    assert min(FreeMemory(opened).limits()) == (96, "control group", 4096)
    opened.close()
    assert (second["cgroup_cpu_cores"], second["cpu_throttled_ratio"], second["cgroup_memory_pressure_ratio"]) == (
        1.2,
        0.25,
        0.1,
    )
    assert second["cgroup_cpu_pressure_ratio"] is None


def test_files_that_were_read_give_way_in_what_a_group_leaves(machine):
    limits = {f"{JOB}/memory.max": "4096\n", f"{JOB}/memory.current": "4000\n"}
    root = machine({**V2, **limits, f"{JOB}/memory.stat": "anon 900\ninactive_anon 5\ninactive_file 3000\n"})
    opened = ProcFiles(root)
    assert min(FreeMemory(opened).limits()) == (3096, "control group", 4096)
    opened.close()


def test_the_older_version_has_other_files(machine):
    lines = "9:name=systemd:/\n4:memory:/job\n3:cpuacct,cpu:/job\n"
    cpu, account, memory = (f"sys/fs/cgroup/{name}/job" for name in ("cpu", "cpuacct", "memory"))
    root = machine(
        {
            "proc/self/cgroup": lines,
            f"{cpu}/cpu.cfs_quota_us": "250000\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
            f"{cpu}/cpu.stat": "nr_periods 3\nnr_throttled 2\nthrottled_time 0\n",
            f"{account}/cpuacct.usage": "0\n",
            f"{memory}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{memory}/memory.usage_in_bytes": "77\n",
            f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        }
    )
    assert quota_cores(root) == 2.5
    opened = ProcFiles(root)
    cgroup = Cgroup(opened)
    cgroup.read(SECOND)
    machine({f"{cpu}/cpu.stat": "throttled_time 500000000\n", f"{account}/cpuacct.usage": "3000000000\n"})
    second = cgroup.read(2 * SECOND)
    assert "control group" not in [name for _, name, _ in FreeMemory(opened).limits()]
    opened.close()
    assert (second["cgroup_cpu_cores"], second["cpu_throttled_ratio"]) == (3.0, 0.5)
    assert (second["cgroup_memory_bytes"], second["cgroup_memory_max_bytes"], second["cgroup_oom_kills"]) == (
        77,
        None,
        1,
    )


def test_a_container_sees_the_root_of_its_own_groups(machine):
    # The path is the host's, and nothing of it is there.
    root = machine({**V2, "sys/fs/cgroup/cpu.max": "100000 100000\n", "sys/fs/cgroup/memory.current": "5\n"})
    assert quota_cores(root) == 1.0
    opened = ProcFiles(root)
    assert Cgroup(opened).read(SECOND)["cgroup_memory_bytes"] == 5
    opened.close()


@pytest.mark.parametrize(
    ("text", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("100000 0\n", None)]
)
def test_quota_is_cores(machine, text, cores):
    root = machine({"sys/fs/cgroup/cgroup.controllers": "cpu\n", "sys/fs/cgroup/cpu.max": text})
    assert quota_cores(root) == cores


def test_no_quota_of_the_older_version_is_none(machine):
    quota, period = (f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us" for name in ("quota", "period"))
    assert quota_cores(machine({})) is None
    assert quota_cores(machine({quota: "-1\n", period: "100000\n"})) is None


def test_traffic_is_that_of_physical_disks_and_interfaces(machine):
    def state(sectors, busy_ms, received):
        block = f"9 0 {sectors} 5 9 0 {2 * sectors} 5 0 {busy_ms} 10 0 0 0 0\n"
        return {
            "sys/block/nvme0n1/stat": block,
            "sys/block/nvme0n1/device/model": "",
            "sys/block/dm-0/stat": block,  # made of the disk above: it would count twice
            "sys/class/net/eth0/statistics/rx_bytes": f"{received}\n",
            "sys/class/net/eth0/statistics/tx_bytes": "0\n",
            "sys/class/net/eth0/device/vendor": "",
            "sys/class/net/docker0/statistics/rx_bytes": f"{received}\n",
            "sys/class/net/lo/statistics/rx_bytes": f"{received}\n",
        }

    opened = ProcFiles(machine(state(0, 0, 0)))
    traffic = Traffic(opened)
    assert set(traffic.read(SECOND).values()) == {None}
    machine(state(1000, 400, 5000))
    assert traffic.read(2 * SECOND) == {
        "disk_read_bytes_per_s": 512_000,
        "disk_write_bytes_per_s": 1_024_000,
        "disk_busy_ratio": 0.4,
        "net_rx_bytes_per_s": 5000,
        "net_tx_bytes_per_s": 0,
    }
    opened.close()


def test_in_a_container_no_interface_is_physical(machine):
    def state(received):
        names = ("lo", "eth0")
        return {f"sys/class/net/{name}/statistics/rx_bytes": f"{received}\n" for name in names}

    opened = ProcFiles(machine(state(0)))
    traffic = Traffic(opened)
    traffic.read(SECOND)
    machine(state(700))
    second = traffic.read(2 * SECOND)
    opened.close()
    assert (second["net_rx_bytes_per_s"], second["net_tx_bytes_per_s"], second["disk_busy_ratio"]) == (700, None, None)


def _spin(done):
    while not done.is_set():
        sum(range(1000))


@pytest.mark.skipif(not hasattr(multiprocessing, "get_context"), reason=LINUX)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_are_the_processes_that_this_one_started(method, recwarn):
    context = multiprocessing.get_context(method)
    done = context.Event()
    workers = [context.Process(target=_spin, args=(done,)), context.Process(target=done.wait)]
    source = HostSource()
    source.open()
    for worker in workers:
        worker.start()
    try:
        first = source.read().host.workers
        time.sleep(0.5)
        second = source.read().host.workers
    finally:
        done.set()
        for worker in workers:
            worker.join()
    gone = source.read().host.workers
    source.close()
    pids = sorted(worker.pid for worker in workers)
    assert [worker.pid for worker in first] == [worker.pid for worker in second] == pids
    assert all(worker.cpu_cores is None and worker.rss_bytes > 1 << 20 for worker in first)
    cores = {worker.pid: worker.cpu_cores for worker in second}
    assert cores[workers[0].pid] > cores[workers[1].pid]
    assert gone == ()


def test_a_worker_of_any_name_is_read(machine, monkeypatch):
    child = type("Child", (), {"_popen": type("Popen", (), {"pid": 77})})
    monkeypatch.setattr(multiprocessing.process, "_children", {child})
    root = machine({"proc/77/stat": STAT.format(faults=5, user=200, system=100)})
    children = ChildProcesses(ProcFiles(root))
    children.read(SECOND)
    machine({"proc/77/stat": STAT.format(faults=5, user=240, system=110)})
    (worker,) = children.read(2 * SECOND)
    children.close()
    assert (worker.pid, worker.cpu_cores) == (77, 0.5)


def test_the_pages_of_one_worker_are_counted_the_more_seldom_the_longer_it_takes(machine, monkeypatch):
    popen = [type("Popen", (), {"pid": pid}) for pid in (76, 77)]
    monkeypatch.setattr(multiprocessing.process, "_children", {type("Child", (), {"_popen": one}) for one in popen})
    spent = iter(range(0, 10**12, 10**7))  # each count takes 10 ms
    monkeypatch.setattr(host, "thread_time_ns", lambda: next(spent))
    known = {f"proc/{pid}/stat": STAT.format(faults=0, user=0, system=0) for pid in (76, 77)}
    pages = "Rss: 9 kB\nPss_Shmem:  100 kB\nPrivate_Dirty:  300 kB\nAnonymous:  700 kB\n"
    children = ChildProcesses(ProcFiles(machine({**known, "proc/77/smaps_rollup": pages})))
    assert children.pages(0) is None
    children.read(SECOND)
    assert children.pages(SECOND) == WorkerPages(77, 700 * 1024, 200 * 1024)
    counted = [tenth for tenth in range(10, 60) if children.pages(tenth * SECOND // 10)]
    assert counted == [15, 25, 40]
    machine({"proc/77/smaps_rollup": "Private_Dirty:  300 kB\nAnonymous:  700 kB\n"})  # an older kernel
    assert children.pages(100 * SECOND) is None
    children.close()


def test_at_most_so_many_workers_are_read(machine, monkeypatch):
    popen = [type("Popen", (), {"pid": pid}) for pid in range(1, 200)]
    monkeypatch.setattr(multiprocessing.process, "_children", {type("Child", (), {"_popen": one}) for one in popen})
    root = machine({f"proc/{pid}/stat": STAT.format(faults=0, user=0, system=0) for pid in range(1, 200)})
    children = ChildProcesses(ProcFiles(root))
    assert [worker.pid for worker in children.read(SECOND)] == list(range(1, 65))
    children.close()
