"""32-true and 64-true change the network and the buffer alone; half precision is refused, with the reason."""

from pathlib import Path
from typing import Any, get_args, get_type_hints

import lightning as L
import pytest
import torch

from nl_lightning import NeuralLogTS2, NeuralLogUCB2
from nl_lightning.agents.base import Agent
from nl_lightning.cli.main import main
from nl_lightning.core.errors import InputError
from nl_lightning.core.types import History
from nl_lightning.environments import Synthetic
from nl_lightning.rollout.data import BanditData
from nl_lightning.runs.recorder import Recorder
from tests.support.cli import H1, SMALL, fails
from tests.support.fits import QUIET, Keep
from tests.support.small_agents import VARIANTS, make

TAKEN = get_args(get_type_hints(L.Trainer.__init__)["precision"])
KNOWN = {str(name) for literal in TAKEN for name in get_args(literal)}
"""Every precision that Lightning takes."""
FULL = {"32", "32-true", "64", "64-true"}
REASON = "use 32-true or 64-true"


def is_in(agent: Agent, dtype: torch.dtype) -> None:
    """Network and buffer in a precision, and everything else in float64."""
    computing = ("network.", "initial_weights.", "buffer.x", "buffer.reward", "buffer.weight")
    for name, tensor in (*agent.named_parameters(), *agent.named_buffers()):
        if tensor.is_floating_point():
            assert tensor.dtype == (dtype if name.startswith(computing) else torch.float64), name


def fitted(arguments: list[str], path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Agent, list[History]]:
    """The agent of a run of the command line, and its rounds."""
    agents, blocks, record = [], [], Recorder.on_rounds_end

    def keep(recorder: Recorder, trainer: L.Trainer, agent: Agent, history: History) -> None:
        agents.append(agent)
        blocks.append(history)
        record(recorder, trainer, agent, history)

    monkeypatch.chdir(path)
    monkeypatch.setattr(Recorder, "on_rounds_end", keep)
    main(["fit", H1, *SMALL, *arguments, "--run.id=x"])
    return agents[-1], blocks


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", torch.float32), ("64-true", torch.float64)])
@pytest.mark.parametrize("settings", [[], ["--model.design=full"], ["--model.mode=theory", "--model.lr=1e-5"]])
def test_a_precision_is_that_of_network_and_buffer(
    precision: str, dtype: torch.dtype, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, (history, _) = fitted([*settings, f"--trainer.precision={precision}"], tmp_path, monkeypatch)
    is_in(agent, dtype)
    assert {v.dtype for v in (history.score, history.mean, history.bonus, history.radius)} == {torch.float64}
    assert history.x.dtype == dtype


def test_64_true_is_an_agent_in_double_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line against acting, observing and training by hand."""
    by_command, blocks = fitted(["--model=NeuralLogTS2", "--trainer.precision=64-true"], tmp_path, monkeypatch)
    settings: dict[str, Any] = {"kappa": 10.0, "S": 1.0, "replicas": 10}
    agent = NeuralLogTS2(20, **settings, steps=3, update_every=20).double()
    environment = Synthetic("h1")
    environment.prepare(agent.settings.seeds, agent.network.weights[0])
    deal = environment.deal(0, 40)
    scores = []
    for t in range(40):
        choice = agent.act(deal.arms[:, t])
        scores.append(choice.chosen(choice.score))
        agent.observe(choice, choice.chosen(deal.reward[:, t]))
        if t % 20 == 19:
            agent.train_nn()
    found = torch.cat([block.score for block in blocks], dim=1)
    torch.testing.assert_close(found, torch.stack(scores, dim=1), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(by_command.network.weights, agent.network.weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", sorted(KNOWN - FULL))
def test_half_precision_is_refused(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line, and by an agent that a Trainer of one's own is to fit."""
    assert REASON in fails(["fit", H1, *SMALL, f"--trainer.precision={precision}"], capsys)
    try:
        trainer = L.Trainer(**QUIET, enable_checkpointing=False, precision=precision)  # type: ignore[arg-type]
    except (ImportError, RuntimeError, ValueError):
        # Lightning itself does not take it on this machine
        return
    agent, data = NeuralLogUCB2(4, steps=2, update_every=5), BanditData(Synthetic("h1", dim=4, pool=30), 10)
    with pytest.raises(InputError, match=REASON):
        trainer.fit(agent, data)
    is_in(agent, torch.float32)
    assert int(agent.rounds) == 0


def test_lightning_still_has_the_precisions_that_are_refused() -> None:
    assert {"bf16-mixed", "16-mixed", "bf16-true", "16-true"} <= KNOWN


@pytest.mark.parametrize(("name", "design"), VARIANTS)
def test_a_cast_leaves_designs_and_radii(name: str, design: str) -> None:
    agent = make(name, design=design)
    expected = {key: value.clone() for key, value in agent.state_dict().items() if isinstance(value, torch.Tensor)}
    is_in(agent.double(), torch.float64)
    is_in(agent.float(), torch.float32)
    is_in(agent.to(torch.float64), torch.float64)
    is_in(agent.to(torch.float32), torch.float32)
    assert all(torch.equal(agent.state_dict()[key], value) for key, value in expected.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_agent_is_not_cast_to_half_precision(dtype: torch.dtype) -> None:
    agent = NeuralLogUCB2(4)
    with pytest.raises(InputError, match="An agent computes in float32 or float64"):
        agent.to(dtype)
    is_in(agent, torch.float32)


def test_a_fit_after_a_cast_there_and_back_is_the_same(fit: Any) -> None:
    plain: Keep = fit(NeuralLogUCB2(4, steps=3, update_every=10))[1]
    there_and_back: Keep = fit(NeuralLogUCB2(4, steps=3, update_every=10).double().float())[1]
    assert torch.equal(plain.score, there_and_back.score)
