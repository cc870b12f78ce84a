"""How one row is measured: repeated runs, the median, and the growth of a series on log-log axes."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping


def median_seconds(run: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None) -> float:
    """Median CPU time of ``run`` over ``repeats`` runs, ``prepare`` before each not counted; garbage collection off."""
    taken = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            prepare()
            began = time.process_time_ns()
            run()
            taken.append(time.process_time_ns() - began)
    finally:
        gc.enable()
    return statistics.median(taken) / 1e9


def exponent(series: Mapping[int, float]) -> float:
    """Slope of log(seconds) over log(tokens) by least squares: 0 is constant, 1 is linear, 2 is quadratic.

    >>> round(exponent({1000: 1.0, 2000: 2.0, 4000: 4.0}), 6)
    1.0
    """
    xs = [math.log(tokens) for tokens in series]
    ys = [math.log(seconds) for seconds in series.values()]
    middle_x, middle_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread
