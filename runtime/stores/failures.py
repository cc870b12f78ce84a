"""What an error of the system means to who uses a store: full, or failed, where, and what helps."""

from __future__ import annotations

import errno
from pathlib import Path

from .store import StoreFailed, StoreFull

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FIXES = {
    errno.ENOSPC: "free space on this disk, or collect(most_bytes=) less",
    errno.EDQUOT: "raise the quota, or collect(most_bytes=) less",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or give smaller segment_bytes",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.EROFS: "mount it for writing, or give another directory",
    errno.ENOTDIR: "give a directory",
    errno.EEXIST: "give a directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.EIO: "look at the disk; what it can still read can be copied",
}


def failure(problem: OSError, path: Path, what: str) -> StoreFull | StoreFailed:
    """The error to raise from ``problem``, which names no file or one in ``path``; ``what`` has come of it."""
    kind = StoreFull if problem.errno in _FULL else StoreFailed
    fix = f"; fix: {_FIXES[problem.errno]}" if problem.errno in _FIXES else ""
    return kind(f"{problem.filename or path}: {problem.strerror or problem}; {what}{fix}")
