"""`Speculation`: which drafts follow the decodes of a step, and how many a model makes behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import NamedTuple

from atom_core.speculation.config import SpeculationConfig
from atom_core.speculation.costs import UNFOLLOWED, StepCosts
from atom_core.speculation.drafter import Drafters
from atom_core.speculation.following import Following
from atom_core.speculation.statistics import DraftStatistics
from atom_core.speculation.trail import Experience, Trail
from atom_core.speculation.trials import Prospect, Trials

# Another number of drafts must be worth this much more than the one that runs.
_LEAST_GAIN = 1.02
# While a model's drafts do not pay, one is made behind every so many steps, to see whether they would be right by now.
_STEPS_BETWEEN_TRIALS = 32
# The same of the request that is tried while the model follows nobody else.
_STEPS_BETWEEN_DRAFTS_OF_TRIED = 2


class Candidate(NamedTuple):
    """A request that decodes.

    Attributes:
        trail, token_ids: its own; tokens that steps in flight sample are not known.
        room: drafts that it has a use for.
    """

    trail: Trail
    token_ids: Sequence[int]
    room: int


class NextDrafts(NamedTuple):
    """What a model is to make behind a step.

    Attributes:
        number: drafts for each request.
        are_awaited: the next step should have them; else they are made to see how often they are right.
    """

    number: int
    are_awaited: bool


NO_NEXT_DRAFTS = NextDrafts(0, are_awaited=False)


class Speculation:
    """Chooses the drafts that are expected to be worth their time.

    A step of B decodes gives B tokens. Drafts give one more for each that is right, which has the chance that was
    measured, and make the step longer, by as much as was measured. Those of most chance come first, and there are as
    many as give most tokens a second: none where that is no more than without (so it turns itself off), and none before
    it is known what steps without cost.

    A model's drafts are made behind the step before, as many for each request as then promise most tokens a second.
    Each request has equally many, as far as it has room: so both steps and drafts run in captured graphs. The worker
    keeps them, and the next step is scheduled before anybody hears which were right.

    Args:
        config: what was asked for.
        drafters: give each request its drafter; None where a model drafts.

    Attributes:
        config: what was asked for.
        costs: what steps without prompts took.
        following: whether a model that drafts follows the steps.
        statistics: counts of the drafts that were verified.
    """

    def __init__(self, config: SpeculationConfig, drafters: Drafters | None = None) -> None:
        self.config, self._drafters = config, drafters
        self.costs, self._trials, self.following = StepCosts(), Trials(), Following()
        self._steps_to_trial = _STEPS_BETWEEN_TRIALS
        # What was best for the last step of a model that drafts.
        self._number = 0
        self._experience = Experience() if config.is_by_model else None
        self.statistics = DraftStatistics(config.num_tokens)

    @property
    def num_kept_tokens(self) -> int:
        """Tokens that are kept of requests that ended, to guess by."""
        return 0 if self._drafters is None else self._drafters.num_kept_tokens

    def start_trail(self, salt: str = "") -> Trail:
        """A trail for a request of `salt` that has none yet."""
        return Trail(None if self._drafters is None else self._drafters.start(salt), self._experience)

    def take_output(self, salt: str, token_ids: Sequence[int]) -> None:
        """A request of `salt` ended with this output."""
        if self._drafters is not None:
            self._drafters.take_output(salt, token_ids)

    def forget(self) -> None:
        """Keep nothing of requests that ended."""
        if self._drafters is not None:
            self._drafters.forget()

    def choose(self, candidates: Sequence[Candidate], *, num_rows: int, room: int) -> list[Sequence[int]]:
        """Drafts for each of `candidates`, all of whose tokens are known.

        Args:
            num_rows: rows of the step, all of them decodes. With other rows only who is not adaptive asks for drafts.
            room: drafts of all candidates together.
        """
        drafts = [self._look(candidate) for candidate in candidates]
        if not self.config.adaptive:
            return self._share(drafts, room)
        lengths = self._best_lengths([chances for _, chances in drafts], num_rows=num_rows, room=room)
        return [token_ids[:length] for (token_ids, _), length in zip(drafts, lengths, strict=True)]

    def is_worth_waiting(self, candidates: Iterable[Candidate], *, num_rows: int, room: int) -> bool:
        """Whether there would be drafts if the one token of each candidate that a step in flight samples were known.

        Tokens as drafters expect them are taken to come: then what they expect after these are the drafts.
        """
        if not self.config.adaptive:
            return True
        chances = [self._look(candidate, num_unknown=1)[1] for candidate in candidates]
        return any(self._best_lengths(chances, num_rows=num_rows, room=room))

    def choose_next(self, candidates: Sequence[Candidate], *, num_rows: int, room: int) -> NextDrafts:
        """How many drafts a model that follows a step should make behind it for each of `candidates`.

        Args:
            candidates: requests whose every token it has followed.
            num_rows: decodes of the next step, theirs among them.
            room: drafts that the next step has room for.
        """
        if not self.config.adaptive:
            return NextDrafts(self.config.num_tokens, are_awaited=True)
        if not self.costs.are_known(num_rows):
            return NO_NEXT_DRAFTS
        chances = []
        for candidate in candidates:
            chance, most = candidate.trail.chance(0), min(self.config.num_tokens, candidate.room)
            chances.append([chance**number for number in range(1, most + 1)])
        if self._would_pay(chances, num_rows=num_rows, room=room):
            self.following.pay()
        prospects = self._prospects(chances, num_rows=num_rows, room=room)
        self._number = _best(prospects, now=self._number)
        number = self._trials.number(prospects, self._number)
        return NextDrafts(number, are_awaited=True) if number else self._perhaps_trial()

    def take_step(
        self, num_tokens: int, seconds: float, num_next_drafts: int, *, is_usual: bool, is_followed: bool = True
    ) -> None:
        """A step of decodes was reported, so long after the one before.

        Args:
            num_tokens: drafts among them.
            num_next_drafts: drafts that were made behind it for each request.
            is_usual: it ran as steps like it run one after the other; steps between two ways to run say nothing.
            is_followed: the model that drafts followed it.
        """
        self._trials.save(seconds)
        if is_usual:
            self.costs.take(num_tokens, seconds, num_next_drafts if is_followed else UNFOLLOWED)

    def _perhaps_trial(self) -> NextDrafts:
        most = _STEPS_BETWEEN_TRIALS if self.following.tried is None else _STEPS_BETWEEN_DRAFTS_OF_TRIED
        self._steps_to_trial = min(self._steps_to_trial, most) - 1
        if self._steps_to_trial:
            return NO_NEXT_DRAFTS
        self._steps_to_trial = most
        return NextDrafts(1, are_awaited=False)

    def _would_pay(self, chances: Sequence[Sequence[float]], *, num_rows: int, room: int) -> bool:
        """Whether drafts of all rows, as likely as those of the candidates, would pay for a model that follows."""
        of_all = list(islice(cycle(chances), num_rows))
        prospects = self._prospects(of_all, num_rows=num_rows, room=room)
        best = max((prospect.rate for prospect in prospects[1:]), default=0.0)
        least_gain = 1.0 if self.following.is_on else _LEAST_GAIN
        return best > least_gain * num_rows / self.costs.seconds_unfollowed(num_rows)

    def _look(self, candidate: Candidate, num_unknown: int = 0) -> tuple[Sequence[int], list[float]]:
        """Drafts after the next `num_unknown` tokens, and how likely it is that all up to each of them are right."""
        num_tokens = min(self.config.num_tokens, candidate.room)
        draft = candidate.trail.look(candidate.token_ids, num_tokens + num_unknown)
        token_ids = draft.token_ids[num_unknown:]
        chance = candidate.trail.chance(draft.level)
        return token_ids, [chance ** (place + 1 + num_unknown) for place in range(len(token_ids))]

    def _share(self, drafts: list[tuple[Sequence[int], list[float]]], room: int) -> list[Sequence[int]]:
        """All there are, first come first."""
        shares = []
        for token_ids, _ in drafts:
            shares.append(token_ids[:room])
            room -= len(shares[-1])
        return shares

    def _prospects(self, chances: Sequence[Sequence[float]], *, num_rows: int, room: int) -> list[Prospect]:
        """What steps promise by the number of drafts of each candidate, from none on. Who has fewer has all of them."""
        prospects = [self._prospect(float(num_rows), num_rows, 0)]
        expected, num_tokens = float(num_rows), num_rows
        for number in range(1, max(map(len, chances), default=0) + 1):
            right = [found[number - 1] for found in chances if len(found) >= number]
            num_tokens += len(right)
            if num_tokens - num_rows > room:
                break
            expected += sum(right)
            prospects.append(self._prospect(expected, num_tokens, number))
        return prospects

    def _prospect(self, expected: float, num_tokens: int, number: int) -> Prospect:
        seconds = self.costs.seconds(num_tokens, number)
        return Prospect(expected, seconds, self.costs.last_measured(num_tokens, number))

    def _best_lengths(self, chances: list[list[float]], *, num_rows: int, room: int) -> list[int]:
        """How many drafts of each candidate give most tokens a second, where each may have its own number."""
        if not self.costs.are_known(num_rows):
            return [0] * len(chances)
        room = min(room, self.costs.most_to_try(num_rows) - num_rows)
        places = [(chance, index) for index, found in enumerate(chances) for chance in found]
        places.sort(key=lambda place: -place[0])
        # More tokens a second than without, by enough.
        best, best_rate = 0, _LEAST_GAIN * num_rows / self.costs.seconds(num_rows)
        expected, tried = float(num_rows), 1
        for number, (chance, _) in enumerate(places[:room], start=1):
            expected += chance
            if number < tried and number < len(places):
                continue
            tried = number + max(1, number // 4)
            rate = expected / self.costs.seconds(num_rows + number)
            if rate > best_rate:
                best, best_rate = number, rate
        lengths = [0] * len(chances)
        for _, index in places[:best]:
            lengths[index] += 1
        return lengths


def _best(prospects: Sequence[Prospect], now: int) -> int:
    """The number of drafts that promises most tokens a second, if that is more by enough than the number `now` does."""
    now = min(now, len(prospects) - 1)
    best = max(range(len(prospects)), key=lambda number: prospects[number].rate)
    return best if prospects[best].rate > _LEAST_GAIN * prospects[now].rate else now
