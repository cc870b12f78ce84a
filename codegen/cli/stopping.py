"""Ctrl-C, answered at once: also while one long computation still runs, and Python hears of it only afterwards."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def answered(who: str) -> Iterator[None]:
    """Within it, Ctrl-C prints "``who``: stopping ..." on stderr; KeyboardInterrupt comes when Python gets to it.

    Outside of the main thread, which alone is interrupted, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    before = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    listener = threading.Thread(target=_listen, args=(ear, who), daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(mouth)  # which ends the listener
        listener.join()
        os.close(ear)


def _listen(ear: int, who: str) -> None:
    while numbers := os.read(ear, 64):
        if signal.SIGINT in numbers:
            print(f"{who}: stopping ...", file=sys.stderr, flush=True)
