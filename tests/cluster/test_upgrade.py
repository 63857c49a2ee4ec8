"""A host with the build of the last tag is upgraded under load: sealed, and packets are lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Eventually
from tests.support.builds import NEW, Build, old
from tests.support.hosts.cluster import Cluster
from tests.support.hosts.traffic import TIMEOUT_S, begin, end
from tests.support.ledger import durable

FIXTURES = (old,)
LOSS = 0.02


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_host_of_the_last_tag_is_upgraded_under_load_and_the_level_raised(
    cluster: Callable[[int], Cluster], old: Build, eventually: Eventually
) -> None:
    made = cluster(3)
    last = made.hosts[-1]
    traffic = begin(made, eventually, {last.name: old})
    made.lose(LOSS)
    tell, ask = made.service.tell, made.service.ask
    assert made.service.call("POST", "/cluster/finalize").status_code == 409
    made.service.tell("POST", "/transports/multicast/keys/rotate")
    node = f"/nodes/{last.name}"
    tell("PATCH", node, {"spec": {"drained": True}})
    eventually(lambda: ask(f"/cluster{node}/drain")["empty"], "drained", timeout_s=TIMEOUT_S)
    last.node.kill()
    last.again(NEW)
    tell("PATCH", node, {"spec": {"drained": False}})
    before = durable(traffic.progress)
    eventually(lambda: traffic.more(before), "acks after the upgrade", timeout_s=TIMEOUT_S)

    def levels() -> set[tuple[str, int, int]]:
        found = ask("/cluster")["engines"]
        return {(each["state"], each["level"], each["level_max"]) for each in found}

    eventually(lambda: levels() == {("up", 1, 2)}, "all are new", timeout_s=TIMEOUT_S)
    tell("POST", "/cluster/finalize")
    eventually(lambda: levels() == {("up", 2, 2)}, "all write level 2", timeout_s=TIMEOUT_S)
    before = durable(traffic.progress)
    eventually(lambda: traffic.more(before), "acks at the new level", timeout_s=TIMEOUT_S)
    made.lose(0.0)
    end(made, traffic, eventually)
