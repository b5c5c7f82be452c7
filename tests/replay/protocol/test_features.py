"""Features and candidate sets, against the slow twin."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nl_lightning.core.errors import InputError
from replay.formats.convert import convert_log
from replay.formats.obd import sample
from replay.logs.obd import USER_FEATURES
from replay.logs.reader import Categories, Log
from replay.protocol.candidates import Protocol, candidates, check_protocol
from replay.protocol.features import Encoded
from replay.protocol.obd_features import DIM, ObdFeatures
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
    events = frame(log)
    slow = twin.features(events, log.items.to_pandas())
    features = ObdFeatures.fit(log)
    seen = 0
    for group in log.groups:
        block = log.events(group)
        shown, arms = offered(block, features, protocol, 5, log, seed=3)
        assert features.encode(log, block, shown)[3:] == (0, 0)
        assert arms.shape == (*shown.item.shape, DIM)
        # those with affinities, which are few, and some others
        rows = {*block.pair["affinity"].value.owner.tolist()[:60], *range(0, group.rows, 97)}
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
        shown = candidates(block, "affinity", arms, log, seed=0)
        for i in range(0, group.rows, 7):
            row = events.iloc[group.first + i]
            others = twin.affinity_candidates(row["item_id"], row["affinity"], log.n_items, arms)
            assert sorted(shown.item[i].tolist()) == sorted([row["item_id"], *others])
            assert shown.item[i, shown.logged[i]] == row["item_id"]


def test_the_order_of_candidates_is_random_and_belongs_to_the_row(simulated: Log) -> None:
    block = simulated.events(simulated.groups[0])
    shown = candidates(block, "affinity", 5, simulated, seed=0)
    places = torch.bincount(shown.logged, minlength=5)
    assert (places - 140).abs().max() < 4 * 140**0.5
    again = candidates(block, "affinity", 5, simulated, seed=0)
    other = candidates(block, "affinity", 5, simulated, seed=1)
    assert (again.item == shown.item).all()
    assert (other.item != shown.item).any()


def test_uniform_candidates_do_not_look_at_the_logged_item(simulated: Log) -> None:
    kept = total = 0
    counts = torch.zeros(simulated.n_items, dtype=torch.long)
    for group in simulated.groups:
        block = simulated.events(group)
        shown, item = candidates(block, "uniform", 5, simulated, seed=0), torch.from_numpy(block.item)
        assert (shown.item.sort(1).values.diff(dim=1) > 0).all()
        inside = shown.logged >= 0
        assert (inside == (shown.item == item.unsqueeze(1)).any(1)).all()
        assert (shown.item[inside].gather(1, shown.logged[inside].unsqueeze(1)).squeeze(1) == item[inside]).all()
        kept, total = kept + int(inside.sum()), total + group.rows
        counts += torch.bincount(shown.item.flatten(), minlength=simulated.n_items)
    assert abs(kept - total * 5 / 12) < 4 * (total * 5 / 12 * 7 / 12) ** 0.5
    assert (counts - total * 5 / 12).abs().max() < 4 * (total * 5 / 12 * 7 / 12) ** 0.5


def test_unseen_and_missing_categories_add_nothing_and_are_counted(simulated: Log, tmp_path: Path) -> None:
    features = ObdFeatures.fit(simulated)
    block = simulated.events(simulated.groups[0])
    shown = candidates(block, "affinity", 5, simulated, seed=0)

    def encoded(users: Categories) -> Encoded:
        changed = block._replace(categorical=block.categorical | {USER_FEATURES[2]: users})
        return features.encode(simulated, changed, shown)

    index, values = block.categorical[USER_FEATURES[2]]
    strange = encoded(Categories(index, ["new" if v == values[0] else v for v in values]))
    assert strange[3:] == (int((index == 0).sum()), 0)
    assert strange.unseen > 0
    lost = encoded(Categories(np.where(index == 0, -1, index), values))
    assert lost[3:] == (0, strange.unseen)
    assert (lost.codes == strange.codes).all()
    lowest, codes = torch.from_numpy(index == 0), features.encode(simulated, block, shown).codes
    first = sum(len(names) + 1 for names in features.categories[:2])
    without = features.users(codes) - features.user[first + codes[:, 2]]
    torch.testing.assert_close(features.users(strange.codes)[lowest], without[lowest], rtol=0, atol=1e-14)


def test_a_fit_on_a_sample_sees_its_rows_only(simulated: Log) -> None:
    few = ObdFeatures.fit(simulated, rows=9)
    users = frame(simulated).iloc[:9]
    assert few.categories[3] == sorted(set(users["user_feature_3"]))
    assert len(few.categories[3]) < len(ObdFeatures.fit(simulated).categories[3])
    everything = ObdFeatures.fit(simulated, rows=10**9)
    assert (everything.user == ObdFeatures.fit(simulated).user).all()


def test_features_survive_a_checkpoint(simulated: Log, tmp_path: Path) -> None:
    features = ObdFeatures.fit(simulated)
    torch.save(features.to(torch.empty(0)).state_dict(), tmp_path / "f")
    again = ObdFeatures.from_state_dict(torch.load(tmp_path / "f", weights_only=False))
    block = simulated.events(simulated.groups[1])
    shown = candidates(block, "affinity", 5, simulated, seed=0)
    for one, other in zip(again.encode(simulated, block, shown), features.encode(simulated, block, shown), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    torch.testing.assert_close(again.user, features.user, rtol=1e-6, atol=1e-7)


def test_a_log_with_other_items_is_refused(simulated: Log, bundled: Log) -> None:
    with pytest.raises(InputError, match="has 80 items, the agent's features were fitted for 12"):
        ObdFeatures.fit(simulated).check(bundled)


def test_protocols_are_checked(simulated: Log, bundled: Log) -> None:
    assert check_protocol("all", 5, bundled) == 80
    assert check_protocol("uniform", 12, simulated) == 12
    with pytest.raises(InputError, match="only 12"):
        check_protocol("uniform", 13, simulated)
    with pytest.raises(InputError, match="logged, all, uniform, affinity; got 'nosuch'"):
        check_protocol("nosuch", 4, simulated)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="logged needs a log that lists candidates, and .*/log lists none; use all"):
        check_protocol("logged", 4, simulated)
