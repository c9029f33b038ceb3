"""Reads the largest resident set of this process."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Lock

from nvfp.errors import NotBuiltError, message

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_SLACK = 16 << 20  # the kernel keeps both figures by thread and adds them up now and then
_lock = Lock()
_active: list[ProcessMeter] = []


class ProcessMeter:
    """Largest resident set of the process, since `begin` where the system can start it anew."""

    def __init__(self) -> None:
        self.source = "resident set of the whole process"
        self.start = 0
        self._noted = 0

    def begin(self) -> None:
        """Start anew; meters that run already keep what they have seen."""
        with _lock:
            highest = _highest()
            for meter in _active:
                meter._noted = max(meter._noted, highest)
            if not _start_anew():
                self.source += ", since its start"
            self.start = self._noted = _resident()
            _active.append(self)

    def end(self) -> None:
        """Stop; another meter may start the count anew now."""
        with _lock:
            _active.remove(self)

    def peak(self) -> int:
        """Most bytes so far."""
        with _lock:
            return max(self._noted, _highest())


def _start_anew() -> bool:
    """Set the highest resident set to the current one (Linux: 5 written to clear_refs); False if it stays."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return _highest() <= _resident() + _SLACK


def _highest() -> int:
    found = _status("VmHWM")
    if found is not None:
        return found
    if sys.platform == "win32":
        do = "measure with the tools of the system, or on CUDA"
        raise NotBuiltError(message("peak_memory", "a system that tells the resident set", sys.platform, do))
    import resource

    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else 1024 * highest


def _resident() -> int:
    """The current resident set; where only the highest is told, that."""
    found = _status("VmRSS")
    return _highest() if found is None else found


def _status(key: str) -> int | None:
    """A line of Linux's status file in bytes; None elsewhere."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)
