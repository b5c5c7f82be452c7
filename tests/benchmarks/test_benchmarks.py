"""The comparison with peers: the same data for all, honest tables, and nobody is left out silently."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import document, stored
from benchmarks.measure import quartiles
from benchmarks.peers import install, marks, same_data, side_by_side, tables
from benchmarks.peers.compare import GROUPS
from benchmarks.peers.contenders import GRID, ONLINE_MARKS, TUNED, VALUES, Contender
from benchmarks.peers.growth import EVENTS, LONG_ROUNDS, ROUNDS
from benchmarks.peers.install import PEERS, NotInstalled, python_of, version_of
from benchmarks.peers.process import OURS, Failed, Process
from benchmarks.peers.side_by_side import measure
from nl_lightning import NeuralLogUCB2
from replay.formats.obd import sample as csv_sample
from tests.support.fits import Fit


def measured(contender: Contender, seconds: list[float], **told: Any) -> dict[str, Any]:
    runs = {str(i): {"seconds": s, "memory": 2e9, **told} for i, s in enumerate(seconds)}
    return {**contender._asdict(), "runs": runs, "import_seconds": 1.5, "first_seconds": 0.2}


@pytest.fixture
def found() -> dict[str, Any]:
    """As ``compare`` gives it: we take a second, every peer takes 200, and events are a million."""
    told = {"online": {"regret": 100.0}, "learning": {"events": 1e6, "ctr": 0.01, "accepted": 2000}}
    told["frozen"] = told["learning"]
    groups = {
        name: {
            c.name: measured(c, [1.0 if c.peer == OURS else 200.0] * c.repetitions, **told[name]) for c in contenders
        }
        for name, contenders in GROUPS.items()
    }
    for run in groups["online"][ONLINE_MARKS[0].ours]["runs"].values():
        run["regret"] /= 2
    long = [{"rounds": n, "seconds": 1.0, "memory": 5e8 + 100 * n} for n in LONG_ROUNDS]
    log = [{"events": n, "seconds": 3e-5 * n, "training": 1e-5 * n, "memory": 5e8} for n in EVENTS]
    return json.loads(
        json.dumps(
            {
                "versions": {peer: version_of(peer) for peer in PEERS},
                "not_installed": {},
                **groups,
                "growth": {
                    "online": {"ours": [{"rounds": n, "seconds": n / 1e3, "memory": 5e8} for n in ROUNDS]},
                    "long": long,
                    "learning": {"ours": log, "obp": log[:2]},
                },
            }
        )
    )


def test_marks(found: dict[str, Any]) -> None:
    rows = marks.rows(found)
    assert all(holds for *_, holds in rows)
    by_name = {what: value for what, value, _, _ in rows}
    first = ONLINE_MARKS[0]
    assert by_name[f"{first.title}: {first.ours} / {first.theirs}"] == "200.0 times as fast (200.0 to 200.0)"
    # ten seeds in a second are ten times as fast a seed
    last = ONLINE_MARKS[-1]
    assert by_name[f"{last.title}: {last.ours} / {last.theirs}"].startswith("2000.0 times")
    assert by_name["(e) memory of one more round of (a)"] == "100 bytes; its features and reward are 84"
    assert [value for what, value in by_name.items() if "TrainNN aside" in what] == ["1.00 (20 us / 20 us)"]


def test_a_mark_that_is_missed_is_no(found: dict[str, Any]) -> None:
    mark = ONLINE_MARKS[0]
    for run in found["online"][mark.theirs]["runs"].values():
        run["seconds"] = 7.9
    found["growth"]["long"][-1]["memory"] += 1e8
    found["growth"]["learning"]["ours"][-1]["seconds"] *= 2
    missed = [what for what, _, _, holds in marks.rows(found) if not holds]
    assert missed[0] == f"{mark.title}: {mark.ours} / {mark.theirs}"
    # beside the same peer: ours by default and by gradient descent
    assert len(missed) == 4


def test_a_regret_that_is_hardly_less_is_no(found: dict[str, Any]) -> None:
    def row() -> Any:
        return next(row for row in marks.rows(found) if "final regret" in row[0])

    assert row()[3]
    for run in found["online"][ONLINE_MARKS[0].ours]["runs"].values():
        run["regret"] *= 1.7
    assert row()[1].startswith("0.85")
    assert not row()[3]


def test_who_could_not_be_measured_is_said(found: dict[str, Any], tmp_path: Path) -> None:
    theirs = found["online"][ONLINE_MARKS[0].theirs]
    theirs |= {"runs": {}, "error": "does not install: no matching distribution"}
    found["not_installed"]["agilerl"] = "no matching distribution"
    row = marks.rows(found)[0]
    assert row[1] == "not measured: does not install: no matching distribution"
    assert not row[3]
    stored.store("peers", marks.rows(found), found, tmp_path / "parts")
    text = document.write(tmp_path, tmp_path / "parts").read_text()
    assert "**agilerl could not be installed: no matching distribution**" in text
    assert "**not measured: does not install: no matching distribution**" in text
    assert (tmp_path / "ratios.png").stat().st_size > 5000
    assert (tmp_path / "growth.png").stat().st_size > 5000


def test_the_document_has_every_contender_and_every_row(found: dict[str, Any], tmp_path: Path) -> None:
    stored.store("peers", marks.rows(found), found, tmp_path / "parts")
    shares = {"shares": {"TrainNN": 0.75, "rounds": 0.25}, "operations": {"operations a round": 4.2, "products": 0.5}}
    stored.store("profile", [("a row", "1.2", "<= 1.5", True)], {"R = 1": shares}, tmp_path / "parts")
    stored.store("fit", [("another row", "3", "<= 2", False)], {}, tmp_path / "parts")
    text = document.write(tmp_path, tmp_path / "parts").read_text()
    for group in GROUPS.values():
        for contender in group:
            assert text.count(f"| {contender.name} |") >= 1
            assert contender.differs.replace("|", "\\|") in text
    assert "| a row | 1.2 | <= 1.5 | yes |" in text
    assert "| another row | 3 | <= 2 | **no** |" in text
    assert "| TrainNN | 75% |" in text
    assert "| operations a round | 4 |" in text


def test_shares_and_spread() -> None:
    assert quartiles([5, 1, 2, 3, 4]) == "2.00 to 4.00"
    assert quartiles([2, 1], ".0f") == "1 to 2"
    theirs = {"counts": 1, "runs": {"0": {"seconds": 8.0}, "1": {"seconds": 4.0}}}
    ours = {"counts": 10, "runs": {"1": {"seconds": 10.0}, "2": {"seconds": 1.0}}}
    # only what both have, and a seed of ten at once takes a tenth
    assert side_by_side.ratios(theirs, ours) == [4.0]
    by_event = {"counts": 1, "runs": {"1": {"seconds": 10.0, "events": 1000}}}
    assert side_by_side.costs(by_event) == {1: 0.01}
    assert marks.slope([{"rounds": n, "memory": 7 + 3 * n} for n in (1, 5, 9)]) == pytest.approx(3)


def test_settings_are_of_their_grids() -> None:
    for (peer, way), chosen in TUNED.items():
        assert chosen.keys() == GRID[peer].keys(), way
        assert all(chosen[name] in values for name, values in GRID[peer].items()), (peer, way)


def test_all_peers_are_pinned() -> None:
    for peer in PEERS:
        pins = (install.PINS / f"{peer}.txt").read_text().splitlines()
        assert all("==" in line for line in pins if not line.startswith("#"))
        assert version_of(peer)


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    same_data.write_rounds(path, [3], 120)
    same_data.write_sample(path)
    return path


@pytest.fixture(scope="module")
def ours(data: Path) -> Iterator[Process]:
    with Process(OURS, data) as process:
        yield process


def test_a_process_does_our_work(ours: Process, fit: Fit) -> None:
    """The regret that is told is that of a fit."""
    settings = {"nu": 0.01, "lam": 1.0, "lr": 0.001}
    found = ours.ask("online", seed=3, replicas=1, rounds=120, **settings)
    agent = NeuralLogUCB2(20, width=20, seed=3, **settings)
    _, rounds = fit(agent, rounds=120, dim=20, arms=5, pool=2500)
    assert found["regret"] == pytest.approx(float(rounds.regret.sum()), rel=1e-4)
    assert 0 < found["training"] < found["seconds"]
    assert found["memory"] > 1e8


def test_what_goes_wrong_in_a_process_is_told_and_it_goes_on(ours: Process) -> None:
    with pytest.raises(Failed, match="InputError: lam must be a finite number"):
        ours.ask("online", seed=0, replicas=1, rounds=10, nu=0.1, lam=-1.0, lr=0.1)
    with pytest.raises(Failed, match="KeyError"):
        ours.ask("no such work")
    assert ours.ask("learning", log="", replicas=1, rounds=20, threads=1, steps=1, lr=1e-4)["accepted"] == 20


def test_a_peer_that_does_not_install_is_measured_as_such(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nobody.txt").write_text("nl-lightning-has-no-such-peer==1.0\n")
    monkeypatch.setattr(install, "PINS", tmp_path)
    monkeypatch.setattr(install, "ENVIRONMENTS", tmp_path / "environments")
    with pytest.raises(NotInstalled, match="nl-lightning-has-no-such-peer"):
        python_of("nobody")
    nobody = Contender("nobody at work", "nobody", "online", {}, "", 2)
    again = nobody._replace(name="nobody once more")
    result = measure([nobody, again], data, lambda text: None)
    for name in ("nobody at work", "nobody once more"):
        assert result[name]["error"].startswith("does not install: ")
        assert result[name]["runs"] == {}
    mine = measured(again._replace(peer=OURS), [1.0], regret=1.0)
    assert "**not measured: does not install" in tables.online({**result, "ours": mine})


def test_a_process_that_dies_says_its_last_words(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.process.python_of", lambda peer: Path(sys.executable))
    # there is no benchmarks.peers.with_somebody
    with pytest.raises(Failed, match="with_somebody"):
        Process("somebody", data)


# ---- the same data ---------------------------------------------------------------------------------------------------


def test_peers_get_the_rounds_that_we_play(data: Path, fit: Fit) -> None:
    dealt = np.load(data / "online-3.npz")
    _, rounds = fit(NeuralLogUCB2(20, width=20, seed=3), rounds=50, dim=20, arms=5, pool=2500)
    t = np.arange(50)
    assert np.array_equal(dealt["reward"][t, rounds.arm[0]], rounds.reward[0])
    assert np.allclose(dealt["regret"][t, rounds.arm[0]], rounds.regret[0])
    assert np.array_equal(dealt["arms"][t, rounds.arm[0]], torch.cat([block.x for block in rounds.blocks], 1)[0])


def test_peers_get_the_events_of_the_log(data: Path) -> None:
    """The contexts are those of obp's own preprocessing, in some order of their columns."""
    sample = np.load(data / "sample.npz")
    assert sample["context"].shape[0] == len(sample["action"]) == 10_000
    assert sample["reward"].sum() == 38
    assert sample["propensity"] == pytest.approx(1 / 80)
    assert set(sample["position"]) == {0, 1, 2}
    assert sample["n_items"] == 80
    users = pd.read_csv(csv_sample() / "all.csv").filter(like="user_feature")
    # as obp's preprocessing does it
    expected = pd.get_dummies(users, drop_first=True).to_numpy(dtype=bool)
    assert {column.tobytes() for column in sample["context"].T} == {column.tobytes() for column in expected.T}


def test_the_value_of_a_learner_stands_beside_the_truth() -> None:
    """Ten logs whose estimates are 0.1 too high, five of them by 0.2 and five by 0."""
    contender = VALUES[0]
    group = {contender.name: measured(contender, [2.0] * 10, events=10_000, accepted=500, online=0.2)}
    for number, run in group[contender.name]["runs"].items():
        run["value"] = 0.4 if int(number) % 2 else 0.2
    row = tables.values(group).splitlines()[-1]
    # sd 0.1054 / sqrt(10) = 0.0333; sqrt((0.2^2 + 0) / 2) = 0.1414
    assert [cell.strip() for cell in row.split("|")[3:-1]] == [
        "5,000 (5,000 to 5,000)",
        "500",
        "0.3000",
        "0.2000",
        "+0.1000 ± 0.0333",
        "0.1414",
    ]
