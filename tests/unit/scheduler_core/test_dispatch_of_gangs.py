"""A gang leaves as one call, with the code, the arguments and the shared values of each member."""

from __future__ import annotations

from dataclasses import replace

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from tests.support.eventually import eventually
from tests.unit.lifecycle.gangs import gang
from tests.unit.scheduler_core.test_dispatcher import Bench


async def test_each_member_gets_what_is_its_own() -> None:
    bench = Bench()
    payload_cache = bench.payload_cache
    item = gang("g", 1, 2, strategy="SPREAD", home_paths=("/home/alice/x",))
    assert item.gang is not None
    first, second = item.gang.members
    members = (
        replace(first, function_digest=payload_cache.put(b"f1"), arguments_digest=payload_cache.put(b"a1"), objects=1),
        replace(second, function_digest=payload_cache.put(b"f2"), arguments_digest=payload_cache.put(b"a2"), objects=2),
    )
    bench.items["g"] = replace(item, gang=replace(item.gang, members=members))
    payload_cache.attach("g", [("o1", b"1"), ("o2", b"2"), ("o1", b"1")])
    bench.links.open.set()
    bench.dispatcher.dispatch([Dispatch("g", 1, 7, "a")])
    await eventually(lambda: bench.sent() == ["g"])
    (call,) = bench.links.up["a"].calls
    assert (call.fence, call.resources, call.target_home) == (7, {"CPU": 3.0}, "/Users/alice")
    assert (call.function, call.arguments, call.objects) == (b"", b"", [])
    assert call.gang is not None
    assert (call.gang.strategy, call.gang.of) == ("SPREAD", "task")
    assert [(one.name, one.function, one.arguments, dict(one.resources)) for one in call.gang.members] == [
        ("f0", b"f1", b"a1", {"CPU": 1.0}),
        ("f1", b"f2", b"a2", {"CPU": 2.0}),
    ]
    assert [[each.digest for each in one.objects] for one in call.gang.members] == [["o1"], ["o2", "o1"]]
    await bench.dispatcher.close()
