"""A log as an environment: agents learn on it by rejection sampling.

An agent does not change between two events that it accepts, so it scores many events at once and takes the first one
whose logged item it picks. Replicas accept different events; each has its own place in the log, and they wait for each
other at a call of TrainNN only.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from nl_lightning.core.checks import check_whole
from nl_lightning.core.errors import InputError
from nl_lightning.core.replicas import pad_singleton
from nl_lightning.core.types import Deal, WarmStartBatch
from nl_lightning.environments import LoggedEnvironment
from nl_lightning.environments.learner_value import LearnerValue
from replay.formats.sample import bundled_log
from replay.logs.digest import digest
from replay.logs.reader import Events, Log, RowGroup
from replay.logs.resampled import Resample, check_resample, hold, jitter_numbers, resample_note
from replay.protocol.candidates import Protocol, check_protocol, default_protocol, logged_only
from replay.protocol.dr_ns import LearningRule, check_learning, learner_note
from replay.protocol.events import CandidateEvents, CandidateGroup, LogCursor, ReplaySettings
from replay.protocol.features import Features
from replay.protocol.fitting import feature_dim, features_from_state, fit_features
from replay.protocol.rejection import check_rule, floor_note, matched_evenly
from replay.protocol.reward_model import SAMPLE, CrossFitted, make_fit
from replay.protocol.table_features import TableFeatures

__all__ = ["CACHE_BYTES", "MOST_IMPORTANCE", "ReplayLog"]


CACHE_BYTES = 200_000_000
"""Row groups that are kept because a replica may still be there."""

MOST_IMPORTANCE = 20.0
"""The most times that a logged event of the warm start counts."""


class ReplayLog(LoggedEnvironment):
    """A log as an environment: an agent that picks the logged action sees its reward, and otherwise nothing.

    Args:
        log: directory of a log (``python -m replay convert``), a path or an address (``s3://bucket/log``); left out,
            the sample random/all that obp carries.
        candidates: which actions an event shows. ``logged``: those that the log lists for it. ``all``: all actions.
            ``uniform``: drawn uniformly, whatever was logged; events whose logged action is not among them are left
            out. These are unbiased. ``affinity``, for the Open Bandit Dataset: the logged item and those with the
            user's highest affinity (the paper's protocol; the set depends on the logged item, so the CTR is that of no
            single policy). Left out, ``logged`` where the log lists candidates, ``affinity`` for the Open Bandit
            Dataset, else ``all``.
        arms: number K of actions that an event shows (for ``uniform`` and ``affinity``).
        rejection: which events count. ``propensity``: they are kept with probability c / propensity, which undoes the
            preferences of the logging policy and keeps everything of a uniform log. ``match``: all; refused for a log
            that is not uniform. ``biased-match``: all, whatever the log. ``dr-ns``: an event is accepted
            with probability c pi / propensity, pi the agent's chance of the logged action, and the value of the agent
            while it learns is estimated over all events, of any log.
        propensity_floor: the constant c; left out, the smallest propensity of the log. A larger one keeps more events,
            but prefers items whose propensity is below it.
        quantile: for ``dr-ns``: c is this quantile of propensity / pi over the events so far, and that of the log's
            propensities until 10 events lie up to it. 0: c is the log's smallest propensity and the value is unbiased;
            a small one accepts more events and is a little biased. Left out, 0.01.
        c_max: for ``dr-ns``: the largest c. Left out, 1.
        carry_weights: for ``dr-ns``: whether an accepted event counts max(1, c pi / propensity) times in the loss, and
            the design matrix, which needs no click, also gets rounds without one. This removes most of that bias. Left
            out, yes, except with quantile 0, where all these weights are 1.
        reward_model: for ``dr-ns``: ``logistic``, a cross-fitted logistic regression, makes the value doubly robust;
            ``none`` is plain IPS; ``my_module:name``, or the object itself, is a model of your own: a function that
            fits, (x (N, d), clicks (N,)) -> a function from (M, d) to M probabilities, or a classifier with ``fit``
            and ``predict_proba`` as scikit-learn has them (``sklearn.ensemble:RandomForestClassifier``). Left out,
            ``logistic``.
        resample: K: each replica plays events drawn from the log with replacement, K times as many as it has, so that
            agents learn longer and their spread can be seen (uniform logs only). Each click comes about K times. The
            log is held in memory. Left out, the log itself is played.
        jitter: for ``resample``: standard deviation of noise on scaled numeric features. Left out, none.
        rows: part of the log that is replayed, such as ``5000:``; left out, all of it, or what comes behind a warm
            start.
        warm_start: part of the log that agents learn as it was logged, whoever chose, before they go on: ``0:5000``.
            Left out, none.
        warm_start_weights: whether a logged event of the warm start counts 1 / (candidates x propensity) times, at most
            20 times, which undoes the preferences of the logging policy; else once.
        fit_rows: events that features are fitted on, the first ones of the log; left out, all of them.
        features: left out, the paper's 42 numbers for the Open Bandit Dataset, and those of the schema for any other
            log. Settings change the latter: ``numeric`` (``standard``: mean 0 and variance 1, ``scale``: to [-1, 1]),
            ``max_categories`` (a column with more is hashed), ``components`` (more one-hot features than this are
            reduced by SVD), ``products`` (of context and action; a linear agent needs them to tell contexts apart).
            ``my_module:function`` computes features of your own: (frame of N events, actions (N, K)) -> (N, K, d).
        seed: seed of the candidate sets and of the propensity correction; all replicas see the same.
    """

    def __init__(
        self,
        log: str | None = None,
        candidates: Protocol | None = None,
        arms: int = 5,
        rejection: LearningRule = "propensity",
        propensity_floor: float | None = None,
        quantile: float | None = None,
        c_max: float | None = None,
        carry_weights: bool | None = None,
        reward_model: str | Callable[..., Any] | None = None,
        resample: int | None = None,
        jitter: float | None = None,
        rows: str | None = None,
        warm_start: str | None = None,
        warm_start_weights: bool = False,
        fit_rows: int | None = None,
        features: dict[str, Any] | str | Callable[..., Any] | None = None,
        seed: int = 0,
    ) -> None:
        check_whole(0, seed=seed)
        if fit_rows is not None:
            check_whole(1, fit_rows=fit_rows)
        self.whole_log = Log(bundled_log() if log is None else log)
        try:
            self.warm_rows = None if warm_start is None else self.whole_log.part(warm_start)
        except InputError as error:
            raise InputError(f"warm_start: {error}") from None
        self.log = self.whole_log.part(_behind(self.warm_rows, self.whole_log) if rows is None else rows)
        if self.warm_rows is not None and _overlap(self.warm_rows, self.log):
            raise InputError(
                f"rows {rows} and warm_start {warm_start} overlap: an agent must not be judged on what it learned."
            )
        self.warm_start_weights = warm_start_weights
        if warm_start_weights and self.warm_rows is None:
            raise InputError("warm_start_weights has no effect without warm_start: name the rows, such as 0:5000.")
        if warm_start_weights and self.whole_log.missing_propensities:
            raise InputError(f"warm_start_weights needs propensities, and {self.whole_log.path} lacks some of them.")
        candidates = candidates or default_protocol(self.log)
        self.arms = check_protocol(candidates, arms, self.log)
        if self.log.schema.candidates:
            self.max_arms = self.arms
        self.rejection = rejection
        given = {"quantile": quantile, "c_max": c_max, "carry_weights": carry_weights, "reward_model": reward_model}
        given |= {"propensity_floor": propensity_floor}
        self.learner = check_learning(rejection, self.log, candidates, given)
        c = None if rejection == "dr-ns" else check_rule(rejection, propensity_floor, self.log)
        check_resample(resample, jitter, rejection, self.log, matched_evenly(self.log.statistics))
        self.resample, self.jitter = resample, jitter
        self._held = None if resample is None else hold(self.log)
        self.setting = ReplaySettings(candidates, self.arms, c, seed, draws=self.learner is not None)
        self._fit_reward = make_fit(reward_model) if self.learner is not None else None
        self._reward_model: CrossFitted | None = None
        self.fit_rows = fit_rows
        self.given_features = features
        self.features: Features | None = None
        self.dim = feature_dim(self.log, features) or 0
        if not self.dim:
            self.dim = self._fitted_features().dim
        self._places: list[LogCursor] = []

    # ---- warm start -----------------------------------------------------------------------------------------------

    def warm_start(self) -> Iterator[WarmStartBatch]:
        log = self.warm_rows
        for group in log.groups if log is not None else ():
            assert log is not None
            events = log.events(group)
            arms = logged_only(events)
            encoded = self._fitted_features().encode(log, events, arms)
            shown = (encoded.codes, encoded.numbers, arms.item, encoded.pair)
            x = self._moved_features().arms(*(column.to(self.like.device) for column in shown)).squeeze(1)
            click = torch.from_numpy(events.click).to(self.like)
            yield WarmStartBatch(x.to(self.like), click, self._importance(events) if self.warm_start_weights else None)

    def _importance(self, events: Events) -> Tensor:
        """(N,), 1 / (candidates x propensity), at most ``MOST_IMPORTANCE``."""
        number = self.log.n_items if events.candidates is None else torch.from_numpy(events.candidates.length)
        weight = 1 / (number * torch.from_numpy(events.propensity))
        return weight.clamp_max(MOST_IMPORTANCE).to(self.like)

    # ---- state ----------------------------------------------------------------------------------------------------

    def reset(self, seeds: Sequence[int]) -> None:
        self._digest = digest(self.log.path)
        self._moved: Features | None = None
        self._logs: list[Log] = [self.log] * len(seeds)
        """of every replica"""
        if self.resample is not None:
            self._logs = [Resample(self.log, self._held, seed, self.resample) for seed in seeds]
        self._places = [LogCursor(log) for log in self._logs]
        self.value = None if self.learner is None else LearnerValue(self.learner, len(seeds))
        self.alive = [True] * len(seeds)
        self._shown: OrderedDict[tuple[int, int], CandidateGroup] = OrderedDict()
        self._unseen: dict[int, tuple[int, int]] = {}

    @property
    def ended(self) -> bool:
        return not any(
            alive and place.group < place.groups for alive, place in zip(self.alive, self._places, strict=True)
        )

    def state_dict(self) -> dict[str, Any]:
        features = None if self.features is None else self.features.state_dict()
        places = [place.state() for place in self._places[: self.share.n_local]]
        state: dict[str, Any] = {
            "features": features,
            "places": places,
            "unseen": self._unseen,
            "log": self._log_identity(),
        }
        settings = {"candidates": self.setting.protocol, "arms": self.arms}
        if self.value is not None:
            state["values"] = self.value.state(self.share.n_local)
        return {**state, "settings": settings, "learned_rows": self._learned_rows()}

    @staticmethod
    def join(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        features = next((state["features"] for state in states if state["features"] is not None), None)
        places = [place for state in states for place in state["places"]]
        # of each row group that somebody has seen
        unseen = {group: count for state in states for group, count in state["unseen"].items()}
        stops = [stop for state in states for _, stop in state["learned_rows"][-1:]]
        *warm, (first, _) = states[0]["learned_rows"]
        learned = [*warm, [first, max(stops)]]
        values = {"values": [value for state in states for value in state["values"]]} if "values" in states[0] else {}
        joined = {**states[0], "features": features, "places": places, "unseen": unseen, "learned_rows": learned}
        return {**joined, **values}

    def _learned_rows(self) -> list[list[int]]:
        """[start, stop) of the rows that were learned as logged, and of those that a replica has passed."""
        seen = max(place.behind[0] for place in self._places)
        if self.resample is not None:
            seen = self.log.rows if seen else 0
        parts = [] if self.warm_rows is None else [(self.warm_rows.first_row, self.warm_rows.rows)]
        return [[first, first + rows] for first, rows in (*parts, (self.log.first_row, seen))]

    def _log_identity(self) -> dict[str, Any]:
        """What tells this log from another one."""
        contents = self.whole_log.statistics.to_json()
        described = {name: self.log.description[name] for name in ("source", "parts")}
        return {**described, **contents, "digest": self._digest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        now, then = self._log_identity(), state["log"]
        differing = [name for name in now if now[name] != then.get(name)]
        if differing:
            name = differing[0]
            what = f"{name} was {then.get(name)}, is {now[name]}"
            raise InputError(
                f"{self.log.path} is not the log that this run began with: "
                f"{'its files hold other events or items' if name == 'digest' else what}. "
                "Put the old log back to go on, or begin a new run."
            )
        given = self.features.settings if isinstance(self.features, TableFeatures) else self.given_features
        self.features, self._moved = None, None
        if state["features"] is not None:
            self.features = features_from_state(state["features"], given)
            self.features.check(self.log)
            if self.features.dim != self.dim:
                raise InputError(
                    f"The run began with {self.features.dim} features of the log, and now there are {self.dim}. "
                    "Give the settings of features that it began with."
                )
        self._unseen = dict(state["unseen"])
        for place, replica in zip(self._places, self.share.replicas, strict=True):
            place.go_to(*state["places"][replica])
        if self.value is not None:
            self.value.load([state["values"][replica] for replica in self.share.replicas])

    def counts(self) -> dict[str, Any]:
        """What became of the events, and what the log is."""
        contents, shown = self.log.statistics, list(self._unseen.values())
        unseen, missing = (sum(pair[i] for pair in shown) for i in range(2))
        warm = None
        if self.warm_rows is not None:
            start, learned = self.warm_rows.first_row, self.warm_rows.statistics
            warm = {"rows": f"{start}:{start + learned.rows}", "events": learned.rows, "clicks": learned.clicks}
        replicas = [place.counts() for place in self._places]
        learner: dict[str, Any] = {}
        if self.value is not None and self.learner is not None:
            learner = {"learner": self.learner._asdict(), "learner_note": learner_note(self.learner)}
            for counted, result in zip(replicas, self.value.results(), strict=True):
                outside = counted["rejected"]["not in the candidate set"]
                counted["rejected"] = {
                    "another arm chosen": counted["seen"] - outside - result["matched"],
                    "not in the candidate set": outside,
                    "propensity correction": result["matched"] - counted["accepted"],
                }
                counted |= result
        return {
            "warm_start": warm,
            "log": {
                "path": str(self.log.path),
                "policy": self.log.description.get("policy"),
                "campaign": self.log.description.get("campaign"),
                "events": contents.rows,
                "clicks": contents.clicks,
                "ctr": contents.ctr,
                "uniform": contents.uniform,
                "bad_rows": self.log.skipped,
            },
            "candidates": self.setting.protocol,
            "rejection": self.rejection,
            "propensity_floor": self.setting.c,
            "propensity_note": floor_note(self.setting.c, contents),
            **self._resampling(),
            "unseen_categories": unseen,
            "missing_categories": missing,
            **learner,
            "replicas": replicas,
        }

    def _resampling(self) -> dict[str, Any]:
        """What a summary says of the resamples."""
        if self.resample is None:
            return {}
        note = resample_note(self.resample, self.jitter, len(self._places))
        return {"resample": self.resample, "jitter": self.jitter, "resample_note": note}

    # ---- rounds ---------------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> list[int]:
        return [place.accepted for place in self._places]

    def advance(self, passed: Sequence[int], accepted: Sequence[int]) -> None:
        for replica, (events, matches) in enumerate(zip(passed, accepted, strict=True)):
            self._places[replica].advance(events, matches, partial(self._group, replica))

    def _group(self, replica: int, number: int) -> CandidateGroup:
        """The events of a row group that are shown to agents; without resamples the same to all."""
        owner = 0 if self.resample is None else self.share.replicas[replica]
        key = (owner, number)
        if key in self._shown:
            self._shown.move_to_end(key)
            return self._shown[key]
        log = self._logs[replica]
        group = log.groups[number]
        events, encoded = CandidateEvents.read(log, group, self._fitted_features(), self.setting)
        if self.jitter is not None:
            events = self._jittered(events, group, self.seeds[replica])
        self._unseen[owner * len(log.groups) + number] = (encoded.unseen, encoded.missing)
        in_set = events.logged >= 0
        thinned = in_set & ~events.kept
        # the value of a learner is over all events, also those that it cannot accept
        index = ((in_set & ~thinned) | self.setting.draws).nonzero().flatten()
        # what lies behind, once i of the shown events are passed: rows, not in the set, thinned
        passed = torch.stack([torch.ones_like(in_set), ~in_set, thinned], dim=1).cumsum(0)
        behind = torch.cat([torch.zeros_like(passed[:1]), passed[index], passed[-1:]])
        left = CandidateEvents(*(column[index].to(self.like.device) for column in events))
        self._shown[key] = CandidateGroup(left._replace(row=left.row.cpu()), behind)
        while sum(group.bytes for group in self._shown.values()) > CACHE_BYTES and len(self._shown) > 1:
            self._shown.popitem(last=False)
        return self._shown[key]

    def _jittered(self, events: CandidateEvents, group: RowGroup, seed: int) -> CandidateEvents:
        if not events.numbers.shape[1]:
            raise InputError(
                f"jitter has no effect: the features of {self.log.path} have no continuous numeric column; leave it "
                "out."
            )
        assert self.jitter is not None
        rows = range(group.first, group.first + group.rows)
        return events._replace(numbers=jitter_numbers(events.numbers, rows, self.jitter, seed))

    def next_events(self, missing: Sequence[int], window: int, most: int, subset: bool) -> Deal | None:
        counts = [
            min(place.expected(rounds, self.arms) + window, most) if rounds else 0
            for place, rounds in zip(self._places, missing, strict=True)
        ]
        padded = max(counts) + window
        parts = [
            place.events(count, padded - count, partial(self._group, replica)) if count else []
            for replica, (place, count) in enumerate(zip(self._places, counts, strict=True))
        ]
        found = [sum(len(part.row) for part in replica) for replica in parts]
        lengths = [min(pair) for pair in zip(counts, found, strict=True)]
        if not any(lengths):
            return None
        everybody = list(range(len(parts)))
        shown = [replica for replica in everybody if lengths[replica]] if subset else everybody
        replicas = None
        if shown != everybody:
            shown = pad_singleton(shown, len(parts))
            replicas = torch.tensor(shown, device=self.like.device)
        filler = next(part for replica in parts for part in replica).slice(0, 1)
        padded, device = max(lengths) + window, self.like.device
        joined = [_joined(parts[replica] or [filler], padded) for replica in shown]
        events = CandidateEvents(*(torch.stack(column) for column in zip(*joined, strict=True)))
        length = torch.tensor([lengths[replica] for replica in shown], device=device)
        padding = torch.arange(padded, device=device) >= length.unsqueeze(1)
        arms = events.arms(self._moved_features())
        chances: dict[str, Tensor | None] = {}
        if self.value is not None:
            predicted = None if self._fit_reward is None else self._fitted_reward_model()(arms, events.row)
            chances = {"propensity": events.propensity, "uniform": events.uniform, "predicted": predicted}
        row, number = events.row, None
        if self.resample is not None:
            drawn = [
                cast(Resample, self._logs[replica]).row(places) for replica, places in zip(shown, row, strict=True)
            ]
            row, number = torch.stack(drawn), row
        return Deal(
            arms=arms,
            mask=events.mask,
            reward=events.click.to(self.like).unsqueeze(-1).expand(-1, -1, self.arms),
            logged=events.logged.masked_fill(padding, -1),
            event=row,
            number=number,
            length=length,
            replicas=replicas,
            **chances,
        )

    def _moved_features(self) -> Features:
        """The features on the device and in the precision of the agent."""
        if self._moved is None:
            self._moved = self._fitted_features().to(self.like)
        return self._moved

    def _fitted_reward_model(self) -> CrossFitted:
        """The reward model, fitted on events spread over the log: a function of the log alone."""
        if self._reward_model is None:
            assert self._fit_reward is not None
            every = -(-self.log.rows // SAMPLE)
            parts = [self._logged_arms(self.log, group, every) for group in self.log.groups]
            x, click, row = (np.concatenate(column) for column in zip(*parts, strict=True))
            self._reward_model = CrossFitted(self._fit_reward, x, click, row)
        return self._reward_model

    def _logged_arms(self, log: Log, group: RowGroup, every: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The logged arms (N, d) of a row group, their clicks and rows: those of every so many rows."""
        events, features = log.events(group), self._fitted_features()
        arms = logged_only(events)
        encoded = features.encode(log, events, arms)
        row = np.arange(events.rows.start, events.rows.stop)
        taken = row % every == 0
        shown = (column[taken] for column in (encoded.codes, encoded.numbers, arms.item, encoded.pair))
        x = features.to(torch.empty(0, dtype=torch.float64)).arms(*shown).squeeze(1)
        return x.numpy(), events.click[taken].astype(np.float64), row[taken]

    def _fitted_features(self) -> Features:
        if self.features is None:
            self.features = fit_features(self.whole_log, self.fit_rows, self.given_features)
        return self.features


def _behind(warm: Log | None, log: Log) -> str | None:
    """The rows behind those of a warm start."""
    if warm is None:
        return None
    stop = warm.first_row + warm.rows
    if stop == log.rows:
        raise InputError(f"warm_start takes {log.path} up to its end: name the rows that are replayed with rows.")
    return f"{stop}:"


def _overlap(a: Log, b: Log) -> bool:
    return a.first_row < b.first_row + b.rows and b.first_row < a.first_row + a.rows


def _joined(parts: list[CandidateEvents], length: int) -> CandidateEvents:
    """Events one behind the other: so many of them, and where there are fewer, the last one again and again."""
    columns = zip(*parts, strict=True)
    whole = [torch.cat(column) if len(parts) > 1 else column[0] for column in columns]
    if len(whole[0]) >= length:
        return CandidateEvents(*whole).slice(0, length)
    index = torch.arange(length, device="cpu").clamp_max(len(whole[0]) - 1)
    # moved once, and not once a column
    places = {device: index.to(device) for device in {column.device for column in whole}}
    return CandidateEvents(*(column[places[column.device]] for column in whole))
