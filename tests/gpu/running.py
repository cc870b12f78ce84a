"""Commands that run for a while: what they print is passed on line by line, and whoever takes too long is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

REPO = Path(__file__).parents[2]


def run(
    command: Sequence[str],
    seconds: float,
    told: Callable[[str], object] = lambda line: None,
    env: Mapping[str, str] = {},
    patience: float = 15,
) -> tuple[int | None, str]:
    """Run a command in the repository, with all that it starts as a group of its own.

    Args:
        command: its first word is a program.
        seconds: that it may take. Then it is interrupted, as by Ctrl-C: pytest tells what it found so far, and ends in
            turn what it has under way.
        told: is given each line as it comes.
        env: variables, beside those that there are.
        patience: seconds until it is killed after that.

    Returns:
        Its exit code, None if it took too long, and what it printed.
    """
    process = subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | env, start_new_session=True,
    )  # fmt: skip
    late = threading.Event()

    def end(how: signal.Signals) -> None:
        late.set()
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            pass  # it ended just now

    timers = [
        threading.Timer(seconds, end, [signal.SIGINT]),
        threading.Timer(seconds + patience, end, [signal.SIGKILL]),
    ]
    for timer in timers:
        timer.start()
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            told(line)
        code = process.wait()
    except BaseException:  # such as Ctrl-C, which does not reach the command's own session
        end(signal.SIGINT)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            end(signal.SIGKILL)
        raise
    finally:
        for timer in timers:
            timer.cancel()
    return None if late.is_set() else code, "".join(lines)
