"""What a node whose engine is used may not differ in."""

from dataclasses import replace
from pathlib import Path

import pytest

from server.backends.cluster.node_properties import NodeProperties, describe_node
from server.errors import StartError
from server.settings import Settings

PROPERTIES = NodeProperties("0.1.0", "2.60.0", "3.11.7", "/srv/weights", "none", "file")


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("darkroom", "0.2.0", "Darkroom: 0.2.0 here, 0.1.0 there"),
        ("ray", "2.61.0", "Ray: 2.61.0 here, 2.60.0 there"),
        ("python", "3.12.1", "Python: 3.12.1 here, 3.11.7 there"),
        ("weights", "/weights", "DARKROOM_WEIGHTS: /weights here, /srv/weights there"),
        ("moderation", "abc", "the moderation policy (by hash): abc here, none there"),
        ("engines", "other", "cluster.toml (by hash): other here, file there"),
    ],
)
def test_each_difference_is_named(field: str, value: str, text: str) -> None:
    assert replace(PROPERTIES, **{field: value}).differences(PROPERTIES) == [text]
    assert PROPERTIES.differences(PROPERTIES) == []


def test_a_policy_is_known_by_its_content(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    one = describe_node(Settings(moderation=policy), "")
    policy.write_text("# more")
    assert describe_node(Settings(moderation=policy), "").moderation != one.moderation != "none"
    with pytest.raises(StartError, match="DARKROOM_MODERATION"):
        describe_node(Settings(moderation=tmp_path / "none.toml"), "")
