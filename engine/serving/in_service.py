"""The choice between shared runs and single ones, by the requests that each serves in a second.

A trial at build measures runs. In service a shared run costs more than its run: threads wait for
it and are woken. So stretches of both are compared on the requests that come, again and again.
"""

from __future__ import annotations

_STRETCH_S = 0.03
_LEAST = 32  # requests in a stretch
_IDLE_S = 0.25  # between two looks: no request came, and so the stretches tell nothing
# A comparison that finds the same again is followed by a pause of twice the length.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 16.0


class SharingInService:
    """Says whether requests share runs now. `look` is for one thread at a time.

    is_on: they do. It is a comparison's to change, which begins once runs have been shared.
    has_shared: to be set where several requests share a run, or have tried to.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.has_shared = False
        self._stretches: list[bool] = []  # of a comparison under way, those that are left
        self._begun: tuple[int, float] | None = None  # requests until then, and the moment
        self._totals = {True: (0.0, 0.0), False: (0.0, 0.0)}  # requests, and in how many seconds
        self._found = True
        self._pause_s = _FIRST_PAUSE_S
        self._next_s = self._looked_s = 0.0

    def look(self, completed: int, now_s: float) -> None:
        """Go on with the comparison. completed: requests so far. now_s: of time.perf_counter()."""
        idle_s, self._looked_s = now_s - self._looked_s, now_s
        begun, self._begun = self._begun, None
        if not self._stretches:
            if now_s >= self._next_s and (self.has_shared or not self.is_on):
                found, self.has_shared = self._found, False
                self._stretches = [found, not found, found]
        elif idle_s > _IDLE_S:
            self._stretches, self.is_on = [], self._found
        elif begun is None:  # until here were the last requests of the stretch before
            self._begun = completed, now_s
        else:
            count, seconds = completed - begun[0], now_s - begun[1]
            if seconds < _STRETCH_S or count < _LEAST:
                self._begun = begun
                return
            way = self._stretches.pop(0)
            requests, lasted_s = self._totals[way]
            self._totals[way] = requests + count, lasted_s + seconds
            if self._stretches:
                self.is_on = self._stretches[0]
            else:
                self._choose(now_s)

    def _choose(self, now_s: float) -> None:
        if self.has_shared:
            shared, single = (requests / s for requests, s in self._totals.values())
            found = shared >= single
        else:  # so few requests at once that nothing is to be chosen
            found = True
        is_same = found == self._found
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if is_same else _FIRST_PAUSE_S
        self._next_s = now_s + self._pause_s
        self.is_on = self._found = found
        for kind, (requests, lasted_s) in self._totals.items():  # what is older counts less
            self._totals[kind] = requests / 2, lasted_s / 2
        self.has_shared = False

    def __str__(self) -> str:
        """Say what was found; "" where nothing was compared."""
        rates = [requests / s for requests, s in self._totals.values() if s]
        if len(rates) < 2:
            return ""
        chosen = "shared" if self._found else "one by one"
        return (
            f"; in service, {rates[0]:.4g} requests a second in shared runs and {rates[1]:.4g} one "
            f"by one: {chosen}"
        )
