"""Counters and histograms in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

#: Upper bounds of latencies, in seconds, and of batch sizes.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self) -> list[str]:
        """Return the histogram as text.

        >>> sizes = Histogram("sizes", "Sizes.", (1, 2))
        >>> sizes.observe(2)
        >>> print(*sizes.lines()[2:], sep="; ")
        sizes_bucket{le="1"} 0; sizes_bucket{le="2"} 1; sizes_bucket{le="+Inf"} 1; sizes_sum 2; sizes_count 1
        """
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        totals = list(accumulate(self._counts))
        buckets = [f'{self._name}_bucket{{le="{bound}"}} {n}' for bound, n in zip(bounds, totals, strict=True)]
        head = [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} histogram"]
        return [*head, *buckets, f"{self._name}_sum {self._sum:.9g}", f"{self._name}_count {totals[-1]}"]


class Metrics:
    """Counts of predict requests by status, their latencies, and the batch sizes of the engine."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.latency = Histogram("equalbits_request_seconds", "Seconds from request to answer.", _SECONDS)
        self.batches = Histogram("equalbits_batch_images", "Images per call of the engine.", _IMAGES)
        self.in_flight = 0

    def text(self) -> str:
        """Return everything as text."""
        name = "equalbits_requests_total"
        lines = [f"# HELP {name} Predict requests by status.", f"# TYPE {name} counter"]
        lines += [f'{name}{{status="{status}"}} {count}' for status, count in sorted(self.statuses.items())]
        name = "equalbits_requests_in_flight"
        lines += [f"# HELP {name} Predict requests without an answer yet.", f"# TYPE {name} gauge"]
        lines += [f"{name} {self.in_flight}", *self.latency.lines(), *self.batches.lines()]
        return "\n".join(lines) + "\n"
