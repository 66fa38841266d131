"""Kills its own process at a named point, where a trap lies. It comes into processes by PYTHONPATH.

A copy of this file, named sitecustomize.py, lies in a folder of its own (see `kills.py`), and what it is told and
tells lies beside it:

traps/ROLE.POINT.N   an armed trap: the first process of that role that passes the point for the N-th time dies
fired/               traps that were claimed, by a rename, so that each kills once
phases/PID           role, start time (pids are used again) and what a process does: starting, sampling, writing,
                     or waiting for a block
gates/POINT          where processes wait while the file is there
log                  a line a kill: how, point, role, phase, pid
"""

import builtins
import importlib.abc
import importlib.util
import os
import signal
import stat
import sys
import time
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
_open, _fsync, _replace = builtins.open, os.fsync, os.replace
passed = Counter()
phase_file = None
phase = "starting"


def find_role():
    words = " ".join(sys.orig_argv)
    if "isles._worker" in words or "default_worker.py" in words:
        return "worker"
    return "driver" if os.environ.get("ISLES_TEST_DRIVER") else None


def enter(name):
    """Write down what this process does, so that it can be read when the process is gone."""
    global phase, phase_file
    phase = name
    if phase_file is None:
        phase_file = os.open(f"{HERE}/phases/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.pwrite(phase_file, f"{ROLE} {STARTED} {name}".ljust(50).encode(), 0)


def reach(point):
    """Die here, if a trap says so."""
    passed[point] += 1
    while os.path.exists(f"{HERE}/gates/{point}"):
        enter("at-gate")
        time.sleep(0.02)
    for name in os.listdir(f"{HERE}/traps"):
        role, wanted, count = name.split(".")[:3]
        if (role, wanted) == (ROLE, point) and passed[point] >= int(count):
            try:
                os.rename(f"{HERE}/traps/{name}", f"{HERE}/fired/{name}.{os.getpid()}")
            except FileNotFoundError:
                continue  # another process was first
            log = os.open(f"{HERE}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(log, f"trap {point} {ROLE} {phase} {os.getpid()}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


class Half:
    """A file whose writing can be cut in the middle."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)

    def write(self, content):
        middle = len(content) // 2
        self._file.write(content[:middle])
        self._file.flush()
        reach("mid-write")
        return middle + self._file.write(content[middle:])


def is_temporary(path):
    """Whether isles writes it: .NAME.PID.tmp."""
    name = os.path.basename(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
    return name.startswith(".") and name.endswith(f".{os.getpid()}.tmp")


def open_file(file, mode="r", *rest, **options):
    if "w" not in mode or not is_temporary(file):
        return _open(file, mode, *rest, **options)
    enter("writing")
    reach("before-write")
    return Half(_open(file, mode, *rest, **options))


def fsync(descriptor):
    _fsync(descriptor)
    if phase == "writing" and stat.S_ISREG(os.fstat(descriptor).st_mode):
        reach("after-fsync")


def replace(source, target, **options):
    if not is_temporary(source):
        return _replace(source, target, **options)
    reach("before-rename")
    _replace(source, target, **options)
    reach("after-rename")
    enter("waiting" if os.fspath(target).endswith("result.safetensors") else "sampling")


def sampling(function):
    def step(*arguments, **options):
        enter("sampling")
        reach("mutation")
        result = function(*arguments, **options)
        reach("under-way")  # given to the device, perhaps not yet worked out
        return result

    return step


class Finder(importlib.abc.MetaPathFinder):
    """Puts the points of sampling into the module that mutates particles."""

    def find_spec(self, name, path=None, target=None):
        if name != "isles.samplers.mutation":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            for name in ("mutate_piece", "draw_chain"):
                setattr(module, name, sampling(getattr(module, name)))

        spec.loader.exec_module = exec_module
        return spec


def start_time():
    with _open("/proc/self/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


ROLE, STARTED = find_role(), start_time()
if ROLE is not None:
    enter("starting")
    builtins.open, os.fsync, os.replace = open_file, fsync, replace
    sys.meta_path.insert(0, Finder())
