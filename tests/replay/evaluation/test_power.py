"""How many events a difference takes: against search, against simulation, and the command."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import replay
from nl_lightning.core.errors import InputError
from nl_lightning.core.intervals import difference_interval
from nl_lightning.core.power import Spread, events_needed, smallest_difference
from replay.__main__ import main
from replay.evaluation.power import agreement_spread, relative_effect
from replay.formats.sample import bundled_log
from replay.logs.reader import Log
from replay.simulation.simulated_world import SimulatedWorld
from tests.support.replay_logs import SMALL, write_log


@pytest.mark.parametrize("spread", [Spread(0.2, 0.0), Spread(0.2, 12_800.0), Spread(0.0, 50.0)])
@pytest.mark.parametrize("effect", [0.0004, 0.01])
def test_events_and_differences_are_inverse(spread: Spread, effect: float) -> None:
    needed = events_needed(effect, spread, 0.97, 0.9)
    assert smallest_difference(round(needed), spread, 0.97, 0.9) == pytest.approx(effect, rel=1e-3)
    # fewer events show less
    assert smallest_difference(round(needed / 2), spread, 0.97, 0.9) > effect


def test_the_power_is_what_it_says() -> None:
    """Two policies on a uniform log of the size that was asked for are told apart in 80% of simulated logs."""
    items, agreement, ctr, effect = 10, 0.8, 0.01, 0.5
    spread = agreement_spread(ctr * (1 + effect / 2), float(items), agreement)
    n = round(events_needed(effect * ctr, spread))
    random, logs = np.random.default_rng(0), 4000
    # where they differ, the first policy earns more, so that the difference over all events is effect * ctr
    better = ctr + effect * ctr / (1 - agreement)
    chance = (1 - agreement) / items
    first, second = random.binomial(n, chance * better, logs), random.binomial(n, chance * ctr, logs)
    found = difference_interval(items * (first - second), items**2 * (first + second), n, items**2, items**2)
    met = items * items * (chance * better + chance * ctr)
    assert met == pytest.approx(spread.per_event * (better + ctr) / 2 / (ctr * (1 + effect / 2)))
    # the variance is that of the clicks which these policies have, more than those of the log
    n = round(events_needed(effect * ctr, Spread(met, spread.unmet)))
    first, second = random.binomial(n, chance * better, logs), random.binomial(n, chance * ctr, logs)
    found = difference_interval(items * (first - second), items**2 * (first + second), n, items**2, items**2)
    assert float((found.low > 0).mean()) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("text", "value"), [("10%", 0.1), ("0.1", 0.1), (" 2.5% ", 0.025), (0.3, 0.3)])
def test_effects(text: str, value: float) -> None:
    assert relative_effect(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "-10%", "ten", "nan", "inf"])
def test_wrong_effects_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--effect must be a relative difference above 0"):
        relative_effect(text)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    world = SimulatedWorld(**SMALL)
    return write_log(tmp_path_factory.mktemp("logs") / "log", world, 3000, group=1000)


def test_the_command(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    main(["power", f"--log={log.path}", "--effect=20%", "--agreement=0.9"])
    text = capsys.readouterr().out
    ctr = log.statistics.ctr
    spread = Spread(2 * 0.1 * ctr * 12, 2 * 12**2)
    assert f"{events_needed(0.2 * ctr, spread):,.0f}" in text
    assert f"{smallest_difference(3000, spread):.2g} " in text
    assert "two policies that agree on 90% of the events" in text


def test_the_command_measures_policies(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    """The number is the one that evaluate ends with."""
    main(["power", f"--log={log.path}", "--policy=logged", "--policy=best-fixed"])
    text = capsys.readouterr().out
    row = replay.evaluate(log, ["logged", "best-fixed"]).differences.loc["best-fixed"]
    assert f"{row['events_needed']:,}" in text
    assert f"{row['smallest_difference']:.2g} " in text
    main(["power", f"--log={log.path}", "--policy=best-fixed"])
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--agreement=1"], "--agreement must be at least 0 and below 1"),
        (["--power=0.2"], "--power must be at least 0.5"),
        (["--effect=much"], "--effect must be"),
        (["--policy=uniform", "--agreement=0.5"], "with --policy it is measured"),
        (["--policy=uniform", "--policy=uniform"], "two different ones"),
        (["--policy=logged"], "would be compared with itself"),
    ],
)
def test_wrong_options_are_refused(given: list[str], text: str, log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["power", f"--log={log.path}", *given])
    assert stop.value.code == 1
    assert text in capsys.readouterr().err


def test_a_log_without_clicks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["power", f"--log={bundled_log()}", "--rows=0:3"])
    assert "has no click" in capsys.readouterr().err


def test_it_does_not_load_torch() -> None:
    code = "import sys; from replay.__main__ import main; main(['power']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "10,000 events with 38 clicks" in done.stdout
