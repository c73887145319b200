/* Stands in for NVIDIA's driver library: what pynvml loads as libnvidia-ml.so.1. Counters grow with the clock.

   FAKE_NVML_DEVICES    UUIDs in NVML's order
   FAKE_NVML_MIG        UUIDs of the MIG devices of the first device
   FAKE_NVML_FAIL       function:code[:from which call on], separated by commas
   FAKE_NVML_SLOW       function:milliseconds of processor time
   FAKE_NVML_SLEEPS     function:milliseconds asleep
   FAKE_NVML_PROCESSES  pid:bytes, separated by commas; "self" is this process
   FAKE_NVML_FIELDS     "580": that driver's numbers of fields; "narrow": PCIe counters of 32 bits
   FAKE_NVML_LOG        file to which the name of every function that is called is appended

   Compiled with -DOLD it lacks what drivers before Hopper lack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { UINT = 1, ULL = 3 };
typedef unsigned long long u64;
typedef struct device { char uuid[96]; int number, instance, is_mig; } device;

static device devices[8], parts[8];
static int n_devices, n_parts, ready, live_samples;

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

static int list(const char *variable, const char *otherwise, device *out, int is_mig) {
    const char *given = getenv(variable);
    char text[1024], *rest = text, *one;
    int n = 0;
    snprintf(text, sizeof text, "%s", given ? given : otherwise);
    while ((one = strsep(&rest, ",")) && *one && n < 8) {
        snprintf(out[n].uuid, sizeof out[n].uuid, "%s", one);
        out[n].number = n;
        out[n].instance = 5 + n;
        out[n].is_mig = is_mig;
        n++;
    }
    return n;
}

/* The code with which this call of the function is to fail, 0 when it is not. */
static int entered(const char *function) {
    static struct { char name[64]; int calls; } seen[64];
    const char *log = getenv("FAKE_NVML_LOG"), *fail = getenv("FAKE_NVML_FAIL"), *slow = getenv("FAKE_NVML_SLOW");
    const char *sleeps = getenv("FAKE_NVML_SLEEPS");
    char text[1024], *rest = text, *one, name[64];
    int calls = 1, code, from, ms;
    if (!ready) {
        ready = 1;
        n_devices = list("FAKE_NVML_DEVICES", "GPU-aaaaaaaa-0000-0000-0000-000000000001", devices, 0);
        n_parts = list("FAKE_NVML_MIG", "", parts, 1);
    }
    for (int i = 0; i < 64; i++)
        if (!seen[i].name[0] || !strcmp(seen[i].name, function)) {
            snprintf(seen[i].name, sizeof seen[i].name, "%s", function);
            calls = ++seen[i].calls;
            break;
        }
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) { fprintf(file, "%s\n", function); fclose(file); }
    }
    if (slow && sscanf(slow, "%63[^:]:%d", name, &ms) == 2 && !strcmp(name, function)) {
        clock_t until = clock() + ms * (CLOCKS_PER_SEC / 1000);
        while (clock() < until) {}
    }
    if (sleeps && sscanf(sleeps, "%63[^:]:%d", name, &ms) == 2 && !strcmp(name, function)) usleep(ms * 1000);
    snprintf(text, sizeof text, "%s", fail ? fail : "");
    while ((one = strsep(&rest, ","))) {
        from = 1;
        if (sscanf(one, "%63[^:]:%d:%d", name, &code, &from) >= 2 && !strcmp(name, function) && calls >= from)
            return code;
    }
    return OK;
}
#define ENTER(function) do { int code = entered(#function); if (code) return code; } while (0)
#define UNSIGNED(function, value) \
    int function(device *d, unsigned *out) { ENTER(function); *out = (value); return OK; }

int nvmlInitWithFlags(unsigned flags) { ENTER(nvmlInitWithFlags); return OK; }
int nvmlShutdown(void) {
    ENTER(nvmlShutdown);
    char line[64];
    snprintf(line, sizeof line, "samples left: %d", live_samples);
    entered(line);
    return OK;
}
const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : "an error";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(nvmlSystemGetDriverVersion);
    snprintf(out, size, "610.57");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *n) { ENTER(nvmlDeviceGetCount_v2); *n = n_devices; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **out) {
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    if ((int)i >= n_devices) return INVALID_ARGUMENT;
    *out = &devices[i];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device **out) {
    ENTER(nvmlDeviceGetHandleByUUID);
    for (int i = 0; i < n_devices; i++) if (!strcmp(uuid, devices[i].uuid)) { *out = &devices[i]; return OK; }
    for (int i = 0; i < n_parts; i++) if (!strcmp(uuid, parts[i].uuid)) { *out = &parts[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(device *d, char *out, unsigned size) {
    ENTER(nvmlDeviceGetUUID);
    snprintf(out, size, "%s", d->uuid);
    return OK;
}
int nvmlDeviceGetName(device *d, char *out, unsigned size) {
    ENTER(nvmlDeviceGetName);
    snprintf(out, size, d->is_mig ? "Fake H200 MIG 1g.18gb" : "Fake H200");
    return OK;
}
int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *pending) {
    ENTER(nvmlDeviceGetMigMode);
    *now = *pending = n_parts && d == &devices[0];
    return OK;
}
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, 7)
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned i, device **out) {
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex);
    if ((int)i >= n_parts) return NOT_FOUND;
    *out = &parts[i];
    return OK;
}
UNSIGNED(nvmlDeviceIsMigDeviceHandle, d->is_mig)
int nvmlDeviceGetGpuInstanceId(device *d, unsigned *out) {
    ENTER(nvmlDeviceGetGpuInstanceId);
    if (!d->is_mig) return NOT_SUPPORTED;
    *out = d->instance;
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **out) {
    ENTER(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    *out = &devices[0];
    return OK;
}

int nvmlDeviceGetUtilizationRates(device *d, unsigned *out) {
    ENTER(nvmlDeviceGetUtilizationRates);
    if (d->is_mig) return NOT_SUPPORTED;
    out[0] = 37 + d->number;
    out[1] = 12;
    return OK;
}
static const u64 GIB = 1ull << 30;
int nvmlDeviceGetMemoryInfo(device *d, u64 *out) {
    ENTER(nvmlDeviceGetMemoryInfo);
    out[0] = 80 * GIB;
    out[2] = (d->is_mig ? 1 : 3) * GIB;
    return OK;
}
UNSIGNED(nvmlDeviceGetPowerUsage, d->is_mig ? 1 : 250000)
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, 700000)
UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
int nvmlDeviceGetTotalEnergyConsumption(device *d, u64 *mj) {
    ENTER(nvmlDeviceGetTotalEnergyConsumption);
    *mj = now_ns() / 4000; /* 250 W */
    return OK;
}
int nvmlDeviceGetClockInfo(device *d, int which, unsigned *out) {
    ENTER(nvmlDeviceGetClockInfo);
    *out = which == 1 ? 1500 : 2600;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(device *d, int which, unsigned *out) {
    ENTER(nvmlDeviceGetMaxClockInfo);
    *out = which == 1 ? 1980 : 3201;
    return OK;
}
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out) {
    ENTER(nvmlDeviceGetTemperature);
    *out = 45;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, u64 *out) {
    ENTER(nvmlDeviceGetCurrentClocksThrottleReasons);
    *out = 8;
    return OK;
}
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, 4)
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, 5)
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, 16)
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, 16)
int nvmlDeviceGetEccMode(device *d, unsigned *now, unsigned *pending) {
    ENTER(nvmlDeviceGetEccMode);
    *now = *pending = 1;
    return OK;
}
int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed) {
    ENTER(nvmlDeviceGetRemappedRows);
    *corrected = 2;
    *not = 1;
    *pending = *failed = 0;
    return OK;
}
int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *up) {
    ENTER(nvmlDeviceGetNvLinkState);
    *up = link != 3;
    return link < 18 ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetNumaNodeId(device *d, int *out) { ENTER(nvmlDeviceGetNumaNodeId); *out = 1; return OK; }
int nvmlDeviceGetCpuAffinity(device *d, unsigned n, u64 *out) {
    ENTER(nvmlDeviceGetCpuAffinity);
    memset(out, 0, n * sizeof *out);
    out[0] = 0xff00;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, void *out) {
    struct { unsigned pid; u64 bytes; unsigned instance, compute; } *processes = out;
    const char *given = getenv("FAKE_NVML_PROCESSES");
    char text[1024], *rest = text, *one, *bytes;
    unsigned found = 0;
    ENTER(nvmlDeviceGetComputeRunningProcesses_v3);
    snprintf(text, sizeof text, "%s", given ? given : "");
    while ((one = strsep(&rest, ",")) && *one) {
        bytes = strchr(one, ':');
        if (out) {
            processes[found].pid = strncmp(one, "self", 4) ? atoi(one) : getpid();
            processes[found].bytes = strtoull(bytes + 1, NULL, 10);
        }
        found++;
    }
    *n = found;
    return found && !out ? INSUFFICIENT_SIZE : OK;
}

#ifndef OLD
typedef struct { unsigned id, scope; long long at_us, took_us; int kind, code; u64 value; } field;
static int fill(field *f) {
    const char *given = getenv("FAKE_NVML_FIELDS");
    int is_580 = given && !strcmp(given, "580"), narrow = given && !strcmp(given, "narrow");
    u64 t = now_ns();
    int all = f->scope == 0xffffffffu;
    f->kind = ULL;
    switch (f->id) {
    case 3: f->value = 7; return OK;
    case 4: f->value = 1; return OK;
    case 74: f->value = t / 4; return OK;
    case 186: f->kind = UINT; f->value = 300000; return OK;
    case 251: f->value = t / 5; return is_580 ? OK : NOT_SUPPORTED;
    case 252: f->value = t / 20; return is_580 ? OK : NOT_SUPPORTED;
    case 269: if (is_580) { f->kind = UINT; f->value = 50; } else f->value = t / 10; return OK;
    case 270: f->value = t / 50; return is_580 ? NOT_SUPPORTED : OK;
    case 138: f->value = t / 500; return all ? OK : INVALID_ARGUMENT; /* 2,000,000 KiB per second */
    case 139: f->value = t / 1000; return all ? OK : INVALID_ARGUMENT;
    case 197: f->value = t; if (narrow) { f->kind = UINT; f->value &= 0xffffffffu; } return OK; /* 1 GB per second */
    case 198: f->value = 2 * t; if (narrow) { f->kind = UINT; f->value &= 0xffffffffu; } return OK;
    }
    return NOT_SUPPORTED;
}
int nvmlDeviceGetFieldValues(device *d, int n, field *fields) {
    ENTER(nvmlDeviceGetFieldValues);
    for (int i = 0; i < n; i++) fields[i].code = fill(&fields[i]);
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, u64 *out) {
    ENTER(nvmlDeviceGetMemoryInfo_v2);
    out[1] = (d->is_mig ? 18 : 141) * GIB;
    out[4] = (d->is_mig ? 1 : 3) * GIB;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(device *d, u64 *out) {
    ENTER(nvmlDeviceGetCurrentClocksEventReasons);
    *out = 4;
    return OK;
}

typedef struct { u64 at_ns; int instance; } sample;
typedef struct { unsigned id; int code; double value; const char *names[3]; } metric;
typedef struct { unsigned version, n; sample *before, *after; metric metrics[]; } question;
int nvmlGpmQueryDeviceSupport(device *d, unsigned *out) { ENTER(nvmlGpmQueryDeviceSupport); out[1] = 1; return OK; }
int nvmlGpmSampleAlloc(sample **out) {
    ENTER(nvmlGpmSampleAlloc);
    *out = calloc(1, sizeof **out);
    live_samples++;
    return OK;
}
int nvmlGpmSampleFree(sample *s) { ENTER(nvmlGpmSampleFree); free(s); live_samples--; return OK; }
int nvmlGpmSampleGet(device *d, sample *s) {
    ENTER(nvmlGpmSampleGet);
    if (d->is_mig) return INVALID_ARGUMENT;
    s->at_ns = now_ns();
    s->instance = 0;
    return OK;
}
int nvmlGpmMigSampleGet(device *d, unsigned instance, sample *s) {
    ENTER(nvmlGpmMigSampleGet);
    if (d->is_mig) return INVALID_ARGUMENT;
    s->at_ns = now_ns();
    s->instance = instance;
    return OK;
}
int nvmlGpmMetricsGet(question *q) {
    ENTER(nvmlGpmMetricsGet);
    if (q->before->at_ns + 100000000ull > q->after->at_ns) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < q->n; i++) {
        metric *m = &q->metrics[i];
        m->code = OK;
        switch (m->id) {
        case 2: m->value = q->after->instance ? 60 : 80; break;
        case 3: m->value = 40; break;
        case 5: m->value = 30; break;
        case 10: m->value = 55; break;
        case 12: m->value = 0.0 / 0.0; break;
        case 20: m->value = 100; break;
        case 21: m->value = 200; break;
        case 60: m->value = 400; break;
        default: m->code = NOT_SUPPORTED;
        }
    }
    return OK;
}
#endif
