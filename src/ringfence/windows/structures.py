"""The structures of job objects as 64-bit Windows lays them out. They are made and measured on any system."""

from __future__ import annotations

from ctypes import Structure, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p, c_wchar_p

MOST_LISTED = 1024


class BasicLimits(Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION; times are in units of 100 ns."""

    _fields_ = (
        ("per_process_user_time", c_int64), ("per_job_user_time", c_int64), ("flags", c_uint32),
        ("least_working_set", c_size_t), ("most_working_set", c_size_t), ("active_processes", c_uint32),
        ("affinity", c_size_t), ("priority_class", c_uint32), ("scheduling_class", c_uint32),
    )  # fmt: skip


class IoCounters(Structure):
    """IO_COUNTERS."""

    _fields_ = tuple((name, c_uint64) for name in (
        "read_operations", "write_operations", "other_operations", "read_bytes", "write_bytes", "other_bytes"
    ))  # fmt: skip


class ExtendedLimits(Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("basic", BasicLimits), ("io", IoCounters), ("process_memory", c_size_t), ("job_memory", c_size_t),
        ("peak_process_memory", c_size_t), ("peak_job_memory", c_size_t),
    )  # fmt: skip


class Accounting(Structure):
    """JOBOBJECT_BASIC_AND_IO_ACCOUNTING_INFORMATION; times are in units of 100 ns."""

    _fields_ = (
        ("user_time", c_int64), ("kernel_time", c_int64), ("period_user_time", c_int64),
        ("period_kernel_time", c_int64), ("page_faults", c_uint32), ("processes", c_uint32),
        ("active_processes", c_uint32), ("terminated_processes", c_uint32), ("io", IoCounters),
    )  # fmt: skip


class UiRestrictions(Structure):
    """JOBOBJECT_BASIC_UI_RESTRICTIONS."""

    _fields_ = (("classes", c_uint32),)


class CpuRate(Structure):
    """JOBOBJECT_CPU_RATE_CONTROL_INFORMATION; the rate is in hundredths of a per cent of all processors."""

    _fields_ = (("flags", c_uint32), ("rate", c_uint32))


class CompletionPort(Structure):
    """JOBOBJECT_ASSOCIATE_COMPLETION_PORT."""

    _fields_ = (("key", c_void_p), ("port", c_void_p))


class ProcessList(Structure):
    """JOBOBJECT_BASIC_PROCESS_ID_LIST."""

    _fields_ = (("assigned", c_uint32), ("listed", c_uint32), ("pids", c_size_t * MOST_LISTED))


class StartupInfo(Structure):
    """STARTUPINFOEXW."""

    _fields_ = (
        ("size", c_uint32), ("reserved", c_wchar_p), ("desktop", c_wchar_p), ("title", c_wchar_p), ("x", c_uint32),
        ("y", c_uint32), ("width", c_uint32), ("height", c_uint32), ("columns", c_uint32), ("rows", c_uint32),
        ("fill", c_uint32), ("flags", c_uint32), ("show", c_uint16), ("more_bytes", c_uint16), ("more", c_void_p),
        ("stdin", c_void_p), ("stdout", c_void_p), ("stderr", c_void_p), ("attributes", c_void_p),
    )  # fmt: skip


class ProcessInformation(Structure):
    """PROCESS_INFORMATION."""

    _fields_ = (("process", c_void_p), ("thread", c_void_p), ("pid", c_uint32), ("tid", c_uint32))


class Overlapped(Structure):
    """OVERLAPPED."""

    _fields_ = (("internal", c_size_t), ("internal_high", c_size_t), ("offset", c_uint64), ("event", c_void_p))


class MemoryCounters(Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = (("size", c_uint32), ("page_faults", c_uint32), *((name, c_size_t) for name in (
        "peak_working_set", "working_set", "peak_paged_pool", "paged_pool", "peak_other_pool", "other_pool",
        "committed", "peak_committed",
    )))  # fmt: skip


class LabeledSid(Structure):
    """TOKEN_MANDATORY_LABEL with its security identifier, which has one part."""

    _fields_ = (("sid", c_void_p), ("attributes", c_uint32))
