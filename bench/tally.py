"""The outcome of an attack that was made many times."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of one attack, from any thread.

    crashes: processes that must live and died. lost: requests, builds or jobs with an error that
    is the attack's. wrong: results that are others'. backs_s: seconds from the end of each attack
    until all was as before. note: what else is to be known.
    """

    runs: int = 0
    crashes: int = 0
    lost: int = 0
    wrong: int = 0
    backs_s: list[float] = field(default_factory=list)
    note: str = ""
    errors: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def lose(self, error: BaseException | str) -> None:
        """Count what is lost, and keep its reason."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        with self.lock:
            self.lost += 1
            self.errors[text] += 1

    def answer(self, is_right: bool) -> None:
        """Count a result."""
        with self.lock:
            self.wrong += not is_right

    @property
    def median_s(self) -> float:
        return statistics.median(self.backs_s) if self.backs_s else 0.0

    @property
    def longest_s(self) -> float:
        return max(self.backs_s, default=0.0)

    @property
    def is_clean(self) -> bool:
        """Nothing crashed, was lost or wrong, and the attack was made."""
        return self.runs > 0 and not (self.crashes or self.lost or self.wrong)
