"""Agents on logs with columns of their own: learning and frozen evaluation, against one event at a time."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from nl_lightning import AGENTS
from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from nl_lightning.core.rng import Stream, row_numbers
from nl_lightning.rollout.data import BanditData
from replay import ReplayLog, evaluate
from replay.__main__ import main
from replay.evaluation import evaluator
from replay.evaluation.evaluate import describe, load, measure
from replay.evaluation.evaluator import FrozenAgent, batches
from replay.logs.reader import Log
from replay.protocol.candidates import Protocol, candidates
from replay.protocol.events import ReplaySettings
from replay.protocol.features import Features
from replay.protocol.fitting import fit_features
from tests.support import replay_twin as twin
from tests.support.fits import QUIET, Keep
from tests.support.own_features import priced
from tests.support.table_logs import PLAIN, SCHEMA, schema_with, table_log

LISTS = schema_with(candidates="offered")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    path = tmp_path_factory.mktemp("logs")
    return {
        "all": table_log(path / "all", SCHEMA, rows=900, group=300),
        "lists": table_log(path / "lists", LISTS, rows=1200, group=500),
        "discrete": table_log(path / "discrete", LISTS, rows=900, group=300, discrete=True),
        "plain": table_log(path / "plain", PLAIN, rows=600),
    }


def agent_of(name: str, features: Features, replicas: int = 1) -> Agent:
    return AGENTS[name](features.dim, nu=0.3, lr=0.002, steps=4, update_every=20, replicas=replicas).double()


def rounds(log: Log, features: Features, protocol: Protocol, arms: int) -> Iterator[tuple[list[int], Tensor]]:
    """The actions of each event and their features, without padding."""
    for group in log.groups:
        events = log.events(group)
        shown = candidates(events, protocol, arms, log, 0)
        encoded = features.encode(log, events, shown)
        x = features.arms(encoded.codes, encoded.numbers, shown.item, encoded.pair)
        mask = shown.shown if shown.shown.shape[1] else torch.ones_like(shown.item, dtype=torch.bool)
        for event in range(group.rows):
            some = mask[event]
            yield shown.item[event, some].tolist(), x[event, some]


def one_by_one(agent: Agent, log: Log, features: Features, protocol: Protocol, arms: int) -> tuple[list[int], Any]:
    """Rows that an agent accepts, and the rejections: it never sees padding."""
    shown, x = map(list, zip(*rounds(log, features, protocol, arms), strict=True))
    events = pd.concat([log.read(group).to_pandas() for group in log.groups], ignore_index=True)
    names = {log.schema.action: "item_id", log.schema.reward: "click", log.schema.propensity_column: "propensity_score"}
    events, ahead = events.rename(columns=names), {}

    def choose(e: int) -> int:
        uniform, normal = agent.noise.of_rows(0, torch.tensor([e]), arms)
        n = len(shown[e])
        noise = (uniform[:, :n], None if normal is None else normal[:, :n])
        ahead["choice"] = agent.choose(agent.featurize(x[e].unsqueeze(0), noise=noise))
        return shown[e][int(ahead["choice"].arm)]

    def observe(e: int) -> None:
        agent.observe(ahead["choice"], torch.tensor([events["click"][e]]))
        if agent.rounds[0] % agent.update_every == 0:
            agent.train_nn()

    u = row_numbers(range(log.rows), 1, 0, Stream.REJECTION).squeeze(1).numpy()
    return twin.replay(events, choose, lambda e: shown[e], observe, u=u, c=log.statistics.propensity_low)


@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "NeuralLog-TS-1", "Logistic-UCB-1"])
@pytest.mark.parametrize(
    ("log", "settings"),
    [
        ("lists", {"candidates": "logged"}),
        ("lists", {"candidates": "uniform", "arms": 3}),
        ("lists", {"candidates": "logged", "features": {"products": True, "components": 3}}),
        ("discrete", {"candidates": "logged", "features": priced}),
        ("all", {"candidates": "all"}),
        ("all", {"candidates": "uniform", "arms": 2, "features": {"numeric": "scale"}}),
        ("plain", {"candidates": "all"}),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(given),
)
def test_replay_equals_one_event_at_a_time(name: str, log: str, settings: dict[str, Any], logs: dict[str, Log]) -> None:
    data = BanditData(ReplayLog(str(logs[log].path), **settings), 10**6)
    played = data.environment
    features = fit_features(logs[log], features=settings.get("features"))
    assert data.dim == features.dim
    fast, slow, keep = agent_of(name, features), agent_of(name, features), Keep()
    L.Trainer(**QUIET, enable_checkpointing=False, callbacks=[keep]).fit(fast, data)
    accepted, rejected = one_by_one(slow, logs[log], features, settings["candidates"], played.arms)
    assert len(accepted) > 20
    assert keep.event[0].tolist() == accepted
    (counts,) = played.counts()["replicas"]
    assert counts == {"accepted": len(accepted), "seen": logs[log].rows, "rejected": rejected}
    for a, b in zip(slow.weights(), fast.weights(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(slow.radius, fast.radius, rtol=1e-9, atol=0)


@pytest.mark.parametrize("limit", [("LOOKUP_ENTRIES", 0), ("KEPT_ARMS", 40), ("WHOLE_PAIRS", 2)])
@pytest.mark.parametrize("name", ["NeuralLog-UCB-1", "NeuralLog-TS-1"])
def test_looking_arms_up_changes_nothing(
    name: str, limit: tuple[str, int], logs: dict[str, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs["discrete"]
    features = fit_features(log)
    assert features.is_discrete
    agent, settings = agent_of(name, features, replicas=2), ReplaySettings("logged", 5, 0.2, 0)
    for _, x in list(rounds(log, features, "logged", 5))[:60]:
        agent.observe(agent.act(x), torch.ones(2))

    def results() -> tuple[Tensor, dict[str, Any]]:
        frozen = FrozenAgent(agent, features)
        values = [frozen.look_up(batch) for batch in batches(log, features, settings, 2)]
        evaluation = measure(agent, features, log, settings, 3)
        return torch.cat(values, dim=1), describe(evaluation, log, settings)

    values, result = results()
    monkeypatch.setattr(evaluator, *limit)
    others, again = results()
    torch.testing.assert_close(others, values, rtol=1e-12, atol=1e-12)
    assert again == result


@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "NeuralLog-TS-2"])
@pytest.mark.parametrize(("log", "protocol", "arms"), [("lists", "logged", 5), ("lists", "uniform", 3),
                                                       ("discrete", "logged", 5), ("all", "all", 5)])  # fmt: skip
def test_estimates_are_those_of_one_event_at_a_time(
    name: str, log: str, protocol: Protocol, arms: int, logs: dict[str, Log]
) -> None:
    chosen, draws = logs[log], 3 if "TS" in name else 1
    features = fit_features(chosen)
    agent = agent_of(name, features)
    shown = list(rounds(chosen, features, protocol, arms))
    for _, x in shown[:60]:
        agent.observe(agent.act(x), torch.ones(1))
    settings = ReplaySettings(protocol, arms, 0.2, 0)
    (row,) = describe(measure(agent, features, chosen, settings, draws), chosen, settings)["replicas"]

    table = [chosen.read(group).to_pandas() for group in chosen.groups]
    logged, click, p = (np.concatenate([part[column] for part in table]) for column in ("drink", "sold", "p"))
    matches = np.zeros((draws, chosen.rows), dtype=bool)
    for e, (items, x) in enumerate(shown):
        for draw in range(draws):
            uniform, normal = agent.noise.of_rows(0, torch.tensor([e]), arms, draw)
            n = len(items)
            noise = (uniform[:, :n], None if normal is None else normal[:, :n])
            choice = agent.choose(agent.featurize(x.unsqueeze(0), noise=noise))
            matches[draw, e] = items[int(choice.arm)] == logged[e]
    u = row_numbers(range(chosen.rows), 1, 0, Stream.REJECTION).squeeze(1).numpy()
    match, pi = matches[0] & (u < 0.2 / p), matches.mean(axis=0)
    if protocol == "uniform":
        # over all sets that could have been drawn from the event's list, one by one
        chances = np.zeros((draws, chosen.rows))
        for e, (items, x) in enumerate(rounds(chosen, features, "logged", 5)):
            for draw in range(draws):
                uniform, normal = agent.noise.of_rows(0, torch.tensor([e]), 5, draw)
                n = len(items)
                noise = (uniform[:, :n], None if normal is None else normal[:, :n])
                scores = agent.score(agent.featurize(x.unsqueeze(0), noise=noise))[0][0].tolist()
                chances[draw, e] = twin.chance_over_sets(scores, list(items).index(logged[e]), min(arms, n))
        pi = chances.mean(axis=0)
    assert row["accepted"] == match.sum()
    assert row["match"] == pytest.approx(twin.match_ctr(click, match), rel=1e-12)
    assert row["ips"] == pytest.approx(twin.ips(click, pi, p), rel=1e-12)
    assert row["snips"] == pytest.approx(twin.snips(click, pi, p), rel=1e-12)


def test_plain_matches_of_lists_with_different_lengths_are_refused(logs: dict[str, Log]) -> None:
    """An event with n candidates is matched with probability 1 / n: those with few would count more."""
    assert logs["lists"].statistics.uniform
    with pytest.raises(InputError, match="has events with different numbers of candidates"):
        ReplayLog(str(logs["lists"].path), candidates="logged", rejection="match")
    note = ReplayLog(str(logs["lists"].path), candidates="logged")
    note.reset([0])
    assert "keeps about" in note.counts()["propensity_note"]
    assert ReplayLog(str(logs["all"].path), candidates="all", rejection="match").setting.c is None


def test_more_contexts_than_int64_can_number_are_not_looked_up(tmp_path: Path, logs: dict[str, Log]) -> None:
    features = fit_features(logs["discrete"])
    features.radix = (2**31, 2**31, 2**31, 7)
    frozen = FrozenAgent(agent_of("NeuralLog-UCB-2", features), features)
    batch = next(batches(logs["discrete"], features, ReplaySettings("logged", 5, None, 0), 1))
    assert frozen.look_up(batch).isfinite().all()


def test_values_that_are_missing_are_noted(logs: dict[str, Log]) -> None:
    log = logs["all"]
    features = fit_features(log)
    settings = ReplaySettings("all", 5, None, 0)
    evaluation = measure(agent_of("NeuralLog-UCB-2", features), features, log, settings)
    missing = sum(log.statistics.missing.get(name, 0) for name in log.schema.context)
    assert evaluation.counts.compute().unknown == missing > 0


@pytest.mark.parametrize("features", [None, {"products": True}, "tests.support.own_features:priced"])
def test_a_checkpoint_brings_its_features(features: Any, logs: dict[str, Log], tmp_path: Path) -> None:
    log = logs["lists"]
    data = BanditData(ReplayLog(str(log.path), candidates="logged", features=features), 80)
    agent = agent_of("NeuralLog-UCB-2", data.environment.features)
    trainer = L.Trainer(**QUIET, enable_checkpointing=False)
    trainer.fit(agent, data)
    trainer.save_checkpoint(path := tmp_path / "a.ckpt")
    own = features if isinstance(features, str) else None
    loaded, fitted, settings = load(path, features=own)
    fitted.check(log)
    assert (fitted.dim, settings) == (data.dim, {"candidates": "logged", "arms": 5})
    shown = ReplaySettings("logged", 5, None, 0)
    one, other = (
        describe(measure(each, by, log, shown), log, shown)["replicas"]
        for each, by in ((agent, data.environment.features), (loaded, fitted))
    )
    assert one == other
    given = [] if own is None else ["--features", own]
    main(["evaluate", "--log", str(log.path), "--checkpoint", str(path), *given, "--output", str(tmp_path / "r.json")])
    if own is not None:
        with pytest.raises(InputError, match="Give the function again: --features my_module:function"):
            load(path)
    else:
        with pytest.raises(InputError, match=r"a\.ckpt: The agent was not trained with features of your own"):
            load(path, features=priced)
    with pytest.raises(InputError, match="has no column" if own else "its numeric context lacks the column age"):
        fitted.check(logs["plain"])


def test_a_run_goes_on_with_the_features_that_it_began_with(logs: dict[str, Log], tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"

    def run(features: Any, rounds: int, begun: Path | None = None) -> L.Trainer:
        data = BanditData(ReplayLog(str(logs["all"].path), candidates="all", features=features), rounds)
        trainer = L.Trainer(**QUIET, enable_checkpointing=False)
        trainer.fit(agent_of("NeuralLog-UCB-2", data.environment.features), data, ckpt_path=begun)
        return trainer

    run({"numeric": "scale"}, 40).save_checkpoint(path)
    run({"numeric": "scale", "components": 16}, 60, path)
    for features, message in (
        (None, "fitted with numeric: scale, not standard"),
        ({"numeric": "standard"}, "fitted with numeric: scale, not standard"),
        ({"numeric": "scale", "max_categories": 9}, "fitted with max_categories: 256, not 9"),
    ):
        with pytest.raises(InputError, match=message):
            run(features, 60, path)
    run(priced, 40).save_checkpoint(path)
    run("tests.support.own_features:priced", 60, path)
    with pytest.raises(InputError, match="trained with the features 'tests.support.own_features:priced', not with"):
        run(lambda frame, actions: priced(frame, actions), 60, path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warm_start": "0-300"}, "warm_start: rows must be like 0:5000, 5000: or :5000, got '0-300'"),
        ({"warm_start": "0:9999"}, "warm_start: rows 0:9999 end at 9999"),
        ({"warm_start": "5:5"}, "warm_start: rows 5:5 hold no event"),
        ({"rows": "0-300"}, "^rows must be like"),
        ({"warm_start": "0:100", "rows": "99:400"}, "rows 99:400 and warm_start 0:100 overlap"),
        ({"warm_start": "400:"}, "warm_start takes .* up to its end"),
        ({"warm_start_weights": True}, "warm_start_weights has no effect without warm_start"),
    ],
    ids=str,
)
def test_parts_of_a_log_that_cannot_be_learned_are_refused_by_name(
    settings: dict[str, Any], message: str, logs: dict[str, Log]
) -> None:
    with pytest.raises(InputError, match=message):
        ReplayLog(str(logs["all"].path), rejection="biased-match", **settings)


def test_an_agent_of_this_process_is_not_judged_unawares_on_what_it_learned(logs: dict[str, Log]) -> None:
    log = logs["all"]
    environment = ReplayLog(str(log.path), warm_start="0:100", rows="100:400", rejection="biased-match")
    agent = agent_of("NeuralLog-UCB-2", fit_features(log))
    L.Trainer(**QUIET, enable_checkpointing=False).fit(agent.float(), BanditData(environment, rounds=10))
    assert environment.features is not None
    pair, passed = (agent, environment.features), environment.state_dict()["learned_rows"][-1][1]
    assert 100 < passed < 400
    # another agent in the same environment passes fewer rows
    other = agent_of("NeuralLog-UCB-2", environment.features).float()
    L.Trainer(**QUIET, enable_checkpointing=False).fit(other, BanditData(environment, rounds=1))
    words = rf"NeuralLog-UCB-2 has learned from {passed - 50} of the 850 rows .*from rows 0:100, 100:{passed}"
    for given, features in ((pair, None), (agent, environment.features), (pair, None)):
        with pytest.warns(UserWarning, match=words):
            evaluate(log, given, rows="50:", features=features)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "WARNING")
        evaluate(log, pair, rows=f"{passed}:")
        evaluate(log, (agent_of("NeuralLog-UCB-2", environment.features).float(), environment.features))
