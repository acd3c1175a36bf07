# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The seccomp profile of containers that read by io_uring: the system calls that Docker's default profile allows, and io_uring's.

Docker has denied io_uring since version 25 (moby/moby#46762). Its default profile cannot be added to by an option, so the whole list is
here; its owners publish it at github.com/moby/profiles (read 2026-11-23). Names that a kernel does not have are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._common.docker_run import DockerRun

TABLE_VARIABLE = "VLLM_PLE_TABLE_MEMORY"
IO_URING = ("io_uring_enter", "io_uring_register", "io_uring_setup")
_ARCHITECTURES = {"SCMP_ARCH_AARCH64": ["SCMP_ARCH_ARM"], "SCMP_ARCH_X86_64": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]}
_ALLOWED = """
_llseek _newselect accept accept4 access adjtimex alarm bind brk cachestat capget capset chdir chmod chown chown32 clock_adjtime clock_adjtime64 clock_getres
clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3
epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group
faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync
fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64
futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid
getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1
inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set ipc kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listmount listxattr listxattrat llistxattr
lremovexattr lseek lsetxattr lstat lstat64 madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2
mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal
msgctl msgget msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe
pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease process_vm_readv process_vm_writev
pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg
remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo
rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto
set_robust_list set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority
setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid setuid32 setxattr setxattrat shmat
shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall socketpair splice stat stat64 statfs statfs64 statmount statx
symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime
timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname
unlink unlinkat uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid write writev
"""
_OF_ARCHITECTURE = {
    "arm64": ("arm_fadvise64_64", "arm_sync_file_range", "breakpoint", "cacheflush", "set_tls", "sync_file_range2"),
    "amd64": ("arch_prctl", "modify_ldt"),
}
# Calls that a container with a capability may use; engines of the collection run without capabilities.
_WITH_CAPABILITY = {
    "CAP_SYS_NICE": ("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"),
    "CAP_SYS_PTRACE": ("kcmp", "pidfd_getfd", "process_madvise"),
    "CAP_PERFMON": ("perf_event_open",),
}
# Address families by number: not AF_ALG (38), AF_VSOCK (40), and what only drivers of old hardware use.
_FAMILIES = (13, 14, 15, 16, 17, 18, 21, 22, 24, 26, 27, 28, 29, 30, 31, 32, 33, 35, 36, 39, 41, 42, 43, 44, 45)
_BELOW_FAMILY = 12
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of clone(2): none of them may be set."""
_ENOSYS = 38


def profile() -> str:
    """Return the file for C(docker run --security-opt seccomp=FILE); the same bytes every time."""
    rules = [
        _rule(sorted({*_ALLOWED.split(), *IO_URING})),
        _rule(["socket"], args=[_argument(_BELOW_FAMILY, "LT")]),
        *(_rule(["socket"], args=[_argument(family)]) for family in _FAMILIES),
        *(_rule(["personality"], args=[_argument(value)]) for value in _PERSONALITIES),
        *(_rule(list(names), includes={"arches": [value]}) for value, names in _OF_ARCHITECTURE.items()),
        *(_rule(list(names), includes={"caps": [value]}) for value, names in _WITH_CAPABILITY.items()),
        _rule(["clone"], args=[_argument(_NEW_NAMESPACES, "MASKED_EQ")]),
        # "There is no such call", so that the C library takes clone(2), whose flags are seen.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
    ]
    document = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [{"architecture": name, "subArchitectures": below} for name, below in _ARCHITECTURES.items()],
        "syscalls": rules,
    }
    return json.dumps(document, indent=1) + "\n"


def needed_for(args: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    """Return the setting of an engine that reads through io_uring; empty without such a setting."""
    if str(args.get("load-format") or "").lower() == "b12x":
        return "--load-format b12x"
    table = table_on_disk(args, env)
    if table:
        return table
    return "B12X_DISK_BACKEND=io_uring" if env.get("B12X_DISK_BACKEND") == "io_uring" else ""


def table_on_disk(args: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    """Return the setting that leaves the model's tables of n-grams on disk, as forks of vLLM allow; empty without such a setting."""
    engram = args.get("engram-config")
    if isinstance(engram, Mapping) and engram.get("table_memory") == "disk":
        return "a table on disk (--engram-config)"
    return f"{TABLE_VARIABLE}=disk" if env.get(TABLE_VARIABLE) == "disk" else ""


def chosen(run: DockerRun) -> bool:
    """Tell whether options of C(docker run) set the seccomp profile of a container."""
    return run.has("--privileged") or any(
        value.startswith(("seccomp=", "seccomp:")) for value in run.values("--security-opt")
    )


def _rule(names: list[str], **more: Any) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ALLOW", **more}


def _argument(value: int, how: str = "EQ") -> dict[str, Any]:
    """Return the condition on the first argument of a call."""
    return {"index": 0, "value": value, "op": f"SCMP_CMP_{how}"}
