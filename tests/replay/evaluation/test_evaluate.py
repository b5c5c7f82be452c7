"""A frozen agent on a log: the estimates against the slow twin and against obp."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from obp.simulator import run_bandit_simulation

from nl_lightning import AGENTS, NeuralLogTS2, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.core.errors import InputError
from replay.__main__ import main
from replay.evaluation import evaluator, shown
from replay.evaluation.estimators import IPS, estimates
from replay.evaluation.evaluate import evaluate_agent
from replay.evaluation.evaluator import Evaluation, FrozenAgent, batches
from replay.evaluation.obp import AgentPolicy, LogDataset, action_distribution, off_policy_estimates
from replay.formats.convert import convert_log
from replay.formats.obd import sample
from replay.logs.obd import OBD
from replay.logs.reader import Log
from replay.protocol import rejection
from replay.protocol.candidates import Protocol
from replay.protocol.events import ReplaySettings
from replay.protocol.obd_features import ObdFeatures
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import replay_twin as twin
from tests.support.paths import ROOT
from tests.support.replay_agents import offered, trained
from tests.support.replay_logs import SMALL, frame, write_log

SOFTMAX = SimulatedWorld(**SMALL, policy="softmax", temperature=2.0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SOFTMAX, 1300, group=500)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Log:
    convert_log(sample(), path := tmp_path_factory.mktemp("logs") / "sample")
    return Log(path)


def one_by_one(agent: Agent, log: Log, setting: ReplaySettings, draws: int) -> list[list[list[int]]]:
    """The item that a replica picks, [draw][replica][event], one event at a time."""
    features, n = ObdFeatures.fit(log), agent.replicas
    picked: list[list[list[int]]] = [[[] for _ in range(n)] for _ in range(draws)]
    noise = [
        [agent.noise.of_rows(r, torch.arange(log.rows), setting.arms, draw) for r in range(n)] for draw in range(draws)
    ]
    for group in log.groups:
        events = log.events(group)
        shown, arms = offered(events, features, setting.protocol, setting.arms, log, setting.seed)
        for i in range(group.rows):
            row, x = group.first + i, arms[i].expand(n, -1, -1)
            for draw in range(draws):
                uniform = torch.stack([u[row] for u, _ in noise[draw]])
                drawn = [z[row] for _, z in noise[draw] if z is not None]
                choice = agent.choose(agent.featurize(x, noise=(uniform, torch.stack(drawn) if drawn else None)))
                for replica, arm in enumerate(choice.arm.tolist()):
                    picked[draw][replica].append(int(shown.item[i, arm]))
    return picked


def over_all_sets(agent: Agent, log: Log, arms: int, draws: int) -> list[list[list[float]]]:
    """The chance of the logged item over all sets of ``arms`` items, [draw][replica][event], set by set."""
    features, n, items = ObdFeatures.fit(log), agent.replicas, log.n_items
    found: list[list[list[float]]] = [[[] for _ in range(n)] for _ in range(draws)]
    for group in log.groups:
        events = log.events(group)
        _, every = offered(events, features, "all", items, log, 0)
        for i in range(group.rows):
            row, x, logged = torch.tensor([group.first + i]), every[i].expand(n, -1, -1), int(events.item[i])
            for draw in range(draws):
                noise = [agent.noise.of_rows(r, row, items, draw) for r in range(n)]
                drawn = [z[0] for _, z in noise if z is not None]
                uniform = torch.stack([u[0] for u, _ in noise])
                view = agent.featurize(x, noise=(uniform, torch.stack(drawn) if drawn else None))
                for replica, scores in enumerate(agent.score(view)[0].tolist()):
                    found[draw][replica].append(twin.chance_over_sets(scores, logged, arms))
    return found


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize(("protocol", "arms"), [("affinity", 5), ("uniform", 4), ("all", 12)])
def test_estimates_are_those_of_the_twin(name: str, protocol: Protocol, arms: int, log: Log) -> None:
    agent, events = trained(name, log, replicas=2), frame(log)
    c = rejection.check_rule("propensity", 0.02, log)
    setting = ReplaySettings(protocol, arms, c, seed=1)
    draws = 6 if agent.exploration.stochastic else 1
    result = evaluate_agent(agent, ObdFeatures.fit(log), log, setting, draws)
    picked = one_by_one(agent, log, setting, draws)
    exact = over_all_sets(agent, log, arms, draws) if protocol == "uniform" else None
    kept = torch.cat([rejection.kept(log.events(group), c, 1, group) for group in log.groups]).numpy()
    click, p = events["click"].to_numpy(), events["propensity_score"].to_numpy()
    for replica, row in enumerate(result["replicas"]):
        matches = np.array([np.array(draw[replica]) == events["item_id"].to_numpy() for draw in picked])
        match = matches[0] & kept
        chances = matches.astype(float) if exact is None else np.array([draw[replica] for draw in exact])
        pi = chances.mean(axis=0)
        assert row["match"] == pytest.approx(twin.match_ctr(click, match), rel=1e-12)
        assert (row["match_low"], row["match_high"]) == pytest.approx(twin.wilson((match * click).sum(), match.sum()))
        assert row["ips"] == pytest.approx(twin.ips(click, pi, p), rel=1e-12)
        assert row["snips"] == pytest.approx(twin.snips(click, pi, p), rel=1e-12)
        assert row["effective_sample_size"] == pytest.approx(twin.effective_sample_size(pi, p), rel=1e-12)
        assert row["acceptance"] == pytest.approx(twin.acceptance_rate(match), rel=1e-12)
        assert (row["ips_low"], row["ips_high"]) == pytest.approx(twin.ips_interval(click, pi, p), rel=1e-9)
        assert (row["snips_low"], row["snips_high"]) == pytest.approx(twin.snips_interval(click, pi, p), rel=1e-9)
        assert row["ips_low"] < row["ips"] < row["ips_high"]
        assert row["accepted"] + sum(row["rejected"].values()) == row["seen"] == log.rows
        if agent.exploration.stochastic:
            error = np.sqrt(((click / p) ** 2 * chances.var(axis=0, ddof=1) / draws).sum()) / log.rows
            assert row["ips_monte_carlo_error"] == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize(
    "limit", [("LOOKUP_ENTRIES", 0), ("KEPT_ARMS", 40), ("WHOLE_PAIRS", 2), ("SCORES_AT_ONCE", 999)]
)
@pytest.mark.parametrize("name", ["NeuralLog-UCB-1", "NeuralLog-TS-1"])
def test_looking_arms_up_changes_nothing(
    name: str, limit: tuple[str, int], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, features = trained(name, log, replicas=3), ObdFeatures.fit(log)
    setting = ReplaySettings("affinity", 5, None, 0)

    def values() -> torch.Tensor:
        frozen = FrozenAgent(agent, features)
        return torch.cat([frozen.look_up(batch) for batch in batches(log, features, setting, 3)], dim=1)

    usual = values()
    monkeypatch.setattr(shown if limit[0] == "SCORES_AT_ONCE" else evaluator, *limit)
    torch.testing.assert_close(values(), usual, rtol=1e-12, atol=1e-12)


def test_monte_carlo_error_is_what_it_says(log: Log) -> None:
    """Over repetitions with other draws, IPS of a Thompson agent spreads by the stated error."""
    features, setting = ObdFeatures.fit(log), ReplaySettings("all", 12, None, 0)
    values, errors = [], []
    for seed in range(60):
        agent = trained("NeuralLog-TS-2", log)
        agent.noise.seeds = [1000 + seed]
        row = evaluate_agent(agent, features, log, setting, draws=5)["replicas"][0]
        values.append(row["ips"])
        errors.append(row["ips_monte_carlo_error"])
    assert 0.75 < np.std(values, ddof=1) / np.sqrt(np.mean(np.square(errors))) < 1.25


@pytest.mark.parametrize("name", ["NeuralLog-UCB-2", "ada-OFU-ECOLog", "NeuralLog-TS-1"])
@pytest.mark.parametrize(("protocol", "arms"), [("all", 80), ("uniform", 10), ("affinity", 5)])
def test_streaming_numbers_are_obps(name: str, protocol: Protocol, arms: int, bundled: Log) -> None:
    agent, features = trained(name, bundled), ObdFeatures.fit(bundled)
    draws, setting = 4 if agent.exploration.stochastic else 1, ReplaySettings(protocol, arms, None, 0)
    ours = evaluate_agent(agent, features, bundled, setting, draws)["replicas"][0]
    theirs = off_policy_estimates(agent, features, bundled, setting, draws)
    # over drawn sets, as over draws, actions are not deterministic; among those of highest affinity some items tie
    deterministic = not agent.exploration.stochastic and protocol == "all"
    assert set(theirs["estimates"]) == {"dm", "ipw", "snipw", "dr", *(["rm"] if deterministic else [])}
    values = {estimator: row["value"] for estimator, row in theirs["estimates"].items()}
    assert abs(ours["ips"] - values["ipw"]) < 1e-10
    assert abs(ours["snips"] - values["snipw"]) < 1e-10
    if deterministic:
        assert abs(ours["match"] - values["rm"]) < 1e-10
    if not agent.exploration.stochastic:
        assert theirs["action_probability_error"] == 0
    else:
        assert 0 < theirs["action_probability_error"] <= 0.5 / (draws - 1) ** 0.5
    assert all(np.isfinite(value) for value in values.values())
    if protocol == "all":
        assert 0 < values["dm"] < 0.05


def test_action_distributions_are_distributions(bundled: Log) -> None:
    for name in ("NeuralLog-UCB-1", "NeuralLog-TS-2"):
        distribution, _ = action_distribution(
            trained(name, bundled), ObdFeatures.fit(bundled), bundled, ReplaySettings("all", 80, None, 0), draws=3
        )
        assert distribution.shape == (10_000, 80, 3)
        np.testing.assert_allclose(distribution.sum(axis=1), 1, rtol=0, atol=1e-12)
        assert (distribution == 1).any()


@pytest.mark.parametrize("agent", [NeuralLogUCB2, NeuralLogTS2])
def test_an_agent_is_a_policy_of_obp(agent: Any, log: Log) -> None:
    """obp's own simulation with it equals the same loop written here."""
    features = ObdFeatures.fit(log)
    dataset = LogDataset(behavior_policy="random", campaign="all", log=log, features=features)
    feedback = dataset.obtain_batch_bandit_feedback()
    settings: dict[str, Any] = {"nu": 0.2, "lr": 0.002, "steps": 5, "update_every": 10, "update_growth": 0.4}
    policy = AgentPolicy(agent=agent(42, **settings).double(), features=features, len_list=3)
    distribution = run_bandit_simulation(feedback, policy)
    twin_agent, events = agent(42, **settings).double(), frame(log)
    arms = twin.features(events, log.items.to_pandas())
    matched, train_at = 0, 10
    for e, row in enumerate(events.to_dict("records")):
        choice = twin_agent.act(torch.from_numpy(arms(row, range(12))))
        assert distribution[e, int(choice.arm), row["position"] - 1] == 1
        if int(choice.arm) == row["item_id"]:
            matched += 1
            twin_agent.observe(choice, torch.tensor([row["click"]]))
            if matched == train_at:
                twin_agent.train_nn()
                train_at = matched + max(10, int(0.4 * matched))
    assert matched == policy.n_trial == int(twin_agent.rounds) > 30
    with pytest.raises(InputError, match="not item"):
        policy.update_params((int(choice.arm) + 1) % 12, 1.0, feedback["context"][:1])


def test_shards_of_a_log_add_up(log: Log) -> None:
    """Each half of the batches in a metric of its own, then merged as devices would."""
    agent, features = trained("NeuralLog-UCB-2", log), ObdFeatures.fit(log)
    parts = [Evaluation(agent, features) for _ in range(3)]
    for number, batch in enumerate(batches(log, features, ReplaySettings("affinity", 5, None, 0), 1)):
        for part in (parts[0], parts[1 + number % 2]):
            part.on_test_start()
            part.test_step(batch, number)
    whole = parts[0].results()
    first = parts[1].estimates["match"].sums + parts[2].estimates["match"].sums
    torch.testing.assert_close(first, parts[0].estimates["match"].sums, rtol=1e-14, atol=0)
    assert whole["match"].value > 0


def test_many_clicks_have_the_normal_interval() -> None:
    """The interval of a mean of independent numbers, where clicks are many and the pseudo-click weighs nothing."""
    g = torch.Generator().manual_seed(0)
    n = 400_000
    click = (torch.rand(n, generator=g) < 0.02).long()
    metrics = estimates(1)
    ones = torch.ones(1, n, dtype=torch.float64)
    metrics.update(click, ones.bool(), ones[0].bool(), ones, ones, ones * 0)
    ips = metrics.compute()["ips"]
    half = 1.96 * (0.02 * 0.98 / n) ** 0.5
    assert float(ips.value) == pytest.approx(float(click.double().mean()), rel=1e-12)
    assert float(ips.high - ips.value) == pytest.approx(half, rel=0.05)
    assert float(ips.value - ips.low) == pytest.approx(half, rel=0.05)
    assert isinstance(metrics["ips"], IPS)


@pytest.fixture(scope="module")
def checkpoint(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nl_lightning.cli.main import main as fit

    directory = tmp_path_factory.mktemp("runs")
    config = ROOT / "configs" / "obd.yaml"
    fit(
        [
            "fit",
            f"--config={config}",
            f"--data.environment.log={log.path}",
            "--trainer.enable_progress_bar=false",
            "--model.replicas=2",
            "--model.steps=5",
            f"--run.dir={directory}",
            "--run.id=x",
        ]
    )
    return directory / "obd" / "x" / "checkpoints" / "last.ckpt"


def test_the_command_evaluates_a_checkpoint(
    log: Log, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "result.json"
    main(["evaluate", f"--log={log.path}", f"--checkpoint={checkpoint}", f"--output={output}", "--candidates=all"])
    result = json.loads(output.read_text())
    assert [row["replica"] for row in result["replicas"]] == [0, 1]
    assert result["arms"] == 12
    assert result["candidates"] == "all"
    shown = capsys.readouterr().out
    assert "NeuralLog-UCB-2, frozen, on 1,300 events" in shown
    assert "rejected:" in shown
    main(["evaluate", f"--log={log.path}", f"--checkpoint={checkpoint}", f"--output={output}"])
    assert json.loads(output.read_text())["candidates"] == "affinity"
    assert "any single policy" in capsys.readouterr().out


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code not in (0, None)
    return capsys.readouterr().err


def test_evaluate_refuses_what_does_not_fit(
    log: Log, bundled: Log, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["evaluate", f"--checkpoint={checkpoint}"]
    text = "has 80 items, the agent's features were fitted for 12"
    assert text in fails([*asked, f"--log={bundled.path}"], capsys)
    assert "was not logged uniformly" in fails([*asked, f"--log={log.path}", "--rejection=match"], capsys)
    assert "only 12" in fails([*asked, f"--log={log.path}", "--arms=13"], capsys)
    assert "There is no checkpoint" in fails(["evaluate", "--checkpoint=nosuch", f"--log={log.path}"], capsys)
    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    assert "is not a checkpoint" in fails(["evaluate", f"--checkpoint={tmp_path / 'other.ckpt'}"], capsys)
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(checkpoint.read_bytes()[:5000])
    assert "is not a checkpoint" in fails(["evaluate", f"--checkpoint={cut}", f"--log={log.path}"], capsys)


def test_a_log_without_propensities_has_no_ips(log: Log, tmp_path: Path) -> None:
    from replay.logs.writer import LogWriter

    events = pa.concat_tables([pq.read_table(file) for file in sorted(log.path.glob("events-*"))])
    column = events.schema.get_field_index("propensity_score")
    unknown = pa.array([None, *events["propensity_score"].to_pylist()[1:]], pa.float64())
    writer = LogWriter(tmp_path / "log", OBD, log.items, {})
    writer.add(events.set_column(column, events.schema.field(column), unknown), progress=0)
    writer.finish(policy="x", campaign="y")
    strange = Log(tmp_path / "log")
    with pytest.raises(InputError, match="1 of 1300 events have no propensity"):
        rejection.check_rule("propensity", None, strange)
    with pytest.raises(InputError, match="row group 0: the event in row 0 has no propensity, which rejection"):
        rejection.kept(strange.events(strange.groups[0]), 0.1, 0, strange.groups[0])
    agent, features = trained("NeuralLog-UCB-2", log), ObdFeatures.fit(log)
    result = evaluate_agent(agent, features, strange, ReplaySettings("affinity", 5, None, 0))
    assert result["replicas"][0]["ips"] is None
    assert result["replicas"][0]["match"] > 0
    assert any("IPS needs propensities" in note for note in result["notes"])
