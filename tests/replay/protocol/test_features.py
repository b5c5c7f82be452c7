"""Features and candidate sets, against the slow twin."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nl_lightning.core.errors import InputError
from replay.formats.convert import convert_log
from replay.formats.obd import sample
from replay.logs.reader import Log
from replay.protocol.candidates import Protocol, candidates, check_protocol
from replay.protocol.features import DIM, Features
from replay.simulation.simulated_world import SimulatedWorld
from tests.support import replay_twin as twin
from tests.support.replay_agents import offered
from tests.support.replay_logs import SMALL, frame, write_log


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return write_log(tmp_path_factory.mktemp("logs") / "log", SimulatedWorld(**SMALL), 2000)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Log:
    path = tmp_path_factory.mktemp("logs") / "sample"
    convert_log(sample(), path)
    return Log(path)


@pytest.mark.parametrize("source", ["simulated", "bundled"])
@pytest.mark.parametrize("protocol", ["affinity", "uniform", "all"])
def test_arms_are_those_of_the_twin(source: str, protocol: Protocol, request: pytest.FixtureRequest) -> None:
    log: Log = request.getfixturevalue(source)
    events, n = frame(log), log.n_items
    slow = twin.features(events, log.items.to_pandas())
    features = Features.fit(log)
    seen = 0
    for group in log.groups:
        block = log.events(group)
        shown, arms = offered(block, features, protocol, 5, n, seed=3)
        assert features.encode(block)[1] == (0, 0)
        assert arms.shape == (*shown.item.shape, DIM)
        # those with affinities, which are few, and some others
        rows = {*block.affinity_owner.tolist()[:60], *range(0, group.rows, 97)}
        for i in rows:
            expected = slow(events.iloc[group.first + i], shown.item[i].tolist())
            np.testing.assert_allclose(arms[i].numpy(), expected, rtol=0, atol=1e-12)
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("source", ["simulated", "bundled"])
@pytest.mark.parametrize("arms", [1, 5, 11])
def test_affinity_candidates_are_those_of_the_twin(source: str, arms: int, request: pytest.FixtureRequest) -> None:
    log: Log = request.getfixturevalue(source)
    events = frame(log)
    for group in log.groups:
        block = log.events(group)
        shown = candidates(block, "affinity", arms, log.n_items, seed=0)
        for i in range(0, group.rows, 7):
            row = events.iloc[group.first + i]
            others = twin.affinity_candidates(row["item_id"], row["affinity"], log.n_items, arms)
            assert sorted(shown.item[i].tolist()) == sorted([row["item_id"], *others])
            assert shown.item[i, shown.logged[i]] == row["item_id"]


def test_the_order_of_candidates_is_random_and_belongs_to_the_row(simulated: Log) -> None:
    block = simulated.events(simulated.groups[0])
    shown = candidates(block, "affinity", 5, simulated.n_items, seed=0)
    places = torch.bincount(shown.logged, minlength=5)
    assert (places - 140).abs().max() < 4 * 140**0.5
    again = candidates(block, "affinity", 5, simulated.n_items, seed=0)
    other = candidates(block, "affinity", 5, simulated.n_items, seed=1)
    assert (again.item == shown.item).all()
    assert (other.item != shown.item).any()


def test_uniform_candidates_do_not_look_at_the_logged_item(simulated: Log) -> None:
    kept = total = 0
    counts = torch.zeros(simulated.n_items, dtype=torch.long)
    for group in simulated.groups:
        block = simulated.events(group)
        shown, item = candidates(block, "uniform", 5, simulated.n_items, seed=0), torch.from_numpy(block.item)
        assert (shown.item.sort(1).values.diff(dim=1) > 0).all()
        inside = shown.logged >= 0
        assert (inside == (shown.item == item.unsqueeze(1)).any(1)).all()
        assert (shown.item[inside].gather(1, shown.logged[inside].unsqueeze(1)).squeeze(1) == item[inside]).all()
        kept, total = kept + int(inside.sum()), total + group.rows
        counts += torch.bincount(shown.item.flatten(), minlength=simulated.n_items)
    assert abs(kept - total * 5 / 12) < 4 * (total * 5 / 12 * 7 / 12) ** 0.5
    assert (counts - total * 5 / 12).abs().max() < 4 * (total * 5 / 12 * 7 / 12) ** 0.5


def test_unseen_and_missing_categories_add_nothing_and_are_counted(simulated: Log, tmp_path: Path) -> None:
    features = Features.fit(simulated)
    block = simulated.events(simulated.groups[0])
    index, values = block.users[2]
    strange = block._replace(
        users=[*block.users[:2], (index, ["new" if v == values[0] else v for v in values]), block.users[3]]
    )
    codes, unseen = features.encode(strange)
    assert unseen == (int((index == 0).sum()), 0)
    assert unseen.unseen > 0
    lost = strange._replace(users=[*block.users[:2], (np.where(index == 0, -1, index), values), block.users[3]])
    lost_codes, missing = features.encode(lost)
    assert missing == (0, unseen.unseen)
    assert (lost_codes == codes).all()
    lowest = torch.from_numpy(index == 0)
    whole = features.user[features.encode(block)[0]].sum(1)
    without = whole - features.user[features.encode(block)[0][:, 2]]
    torch.testing.assert_close(features.user[codes].sum(1)[lowest], without[lowest], rtol=0, atol=1e-14)


def test_a_fit_on_a_sample_sees_its_rows_only(simulated: Log) -> None:
    few = Features.fit(simulated, rows=9)
    users = frame(simulated).iloc[:9]
    assert few.categories[3] == sorted(set(users["user_feature_3"]))
    assert len(few.categories[3]) < len(Features.fit(simulated).categories[3])
    everything = Features.fit(simulated, rows=10**9)
    assert (everything.user == Features.fit(simulated).user).all()


def test_features_survive_a_checkpoint(simulated: Log, tmp_path: Path) -> None:
    features = Features.fit(simulated)
    torch.save(features.to(torch.empty(0)).state_dict(), tmp_path / "f")
    again = Features.from_state_dict(torch.load(tmp_path / "f", weights_only=False))
    block = simulated.events(simulated.groups[1])
    assert (again.encode(block)[0] == features.encode(block)[0]).all()
    torch.testing.assert_close(again.user, features.user, rtol=1e-6, atol=1e-7)


def test_a_log_with_other_items_is_refused(simulated: Log, bundled: Log) -> None:
    with pytest.raises(InputError, match="has 80 items, the agent's features were fitted for 12"):
        Features.fit(simulated).check(bundled)


def test_protocols_are_checked() -> None:
    assert check_protocol("all", 5, 80) == 80
    with pytest.raises(InputError, match="only 3"):
        check_protocol("uniform", 4, 3)
    with pytest.raises(InputError, match="affinity, uniform, all"):
        check_protocol("nosuch", 4, 9)  # type: ignore[arg-type]
