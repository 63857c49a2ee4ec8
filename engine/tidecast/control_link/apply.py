"""Applying the desired state to a node: topics, rates, faults, traffic, transports."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tidecast.config.store import TopologyStore
from tidecast.config.topology import (
    LIVE_TOPIC_FIELDS,
    FaultSettings,
    TopicConfig,
    TransportConfig,
    topology_from,
)
from tidecast.control_link.peers import Peers, checked, load_peers, save_peers
from tidecast.control_link.traffic import Traffic
from tidecast.control_link.wire_keys import keep_wire_keys
from tidecast.errors import ConfigError, TidecastError
from tidecast.node.consumers.storage import is_shared
from tidecast.node.faults import set_quarantine

if TYPE_CHECKING:
    from tidecast.node.durable.topic import DurableTopic
    from tidecast.node.node import Node

SAVE_AFTER_S = 0.5
KNOWN = frozenset(TopicConfig.__struct_fields__)
_log = logging.getLogger("tidecast.control_link")
_AT_TOPIC = re.compile(r"topics\[(\d+)\]\.?")


@dataclass
class Outcome:
    """The effect of a topology. References are ``topic/NAME``, ``transport/NAME`` ..."""

    errors: dict[str, str] = field(default_factory=dict)
    restart_needed: list[str] = field(default_factory=list)
    managed: list[str] = field(default_factory=list)
    differs: dict[str, str] = field(default_factory=dict)
    """Resources that run other than wanted until a restart, and the remedy."""
    observed: dict[str, int] = field(default_factory=dict)
    """The generation in effect of each resource that changed."""


class Applier:
    """Applies topologies to a node, one after another, and saves them.

    In a thread of its own: threads of the link and of commands only read, and name `announced`.
    """

    def __init__(
        self,
        node: Node,
        store: TopologyStore,
        managed: list[str],
        version: int = 0,
        on_saved: Callable[[], None] = lambda: None,
    ) -> None:
        """``version``: that the topology file has; ``on_saved``: `saved_version` has risen."""
        self._node, self._store, self._on_saved = node, store, on_saved
        self.saved_version = version
        """The topology file has all topics of this version: an engine that is killed has it."""
        self._version = version
        self._changes = self._written = 0
        """Messages that changed topics, and so many of them are in the file."""
        self._saving = threading.Lock()
        """Of the timer and these numbers, between the link's thread and the timer's."""
        self._managed = set(managed)
        self._outcome = Outcome()
        self._traffic: dict[str, Traffic] = {}
        self._remade: set[str] = set()
        """Topics that the last message recreated: publications on them have ended."""
        self._observed: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        """Generations that are wanted and not in effect."""
        self._timer: threading.Timer | None = None
        self._peers_kept: Peers | None = {}
        """The content of `peers.json`; None: it was damaged, and is written again."""
        self._unannounced: dict[str, str] = {}
        self._wanted: dict[str, dict[str, Any]] = {}
        """Durable subscriptions that the service has, by name."""
        node.durable.registry.on_queues.append(self._queues_here)

    def apply(self, message: dict[str, Any]) -> Outcome:
        """Apply a ``topology`` message: all topics (``full``), or changed topics.

        Transports and keys, if there, faults and traffic are complete in every message.

        An error in one thing does not keep the others from being applied.
        """
        full = bool(message.get("full"))
        if full:
            self._outcome.errors.clear()
            with self._saving:  # perhaps of another service: its versions begin again
                self._version = self.saved_version = 0
        wanted: dict[str, dict[str, Any] | None] = dict(message.get("topics", {}))
        if full:
            wanted |= dict.fromkeys(self._managed - wanted.keys())
        if "keys" in message:
            self._keys(message["keys"])
        if "wire_keys" in message:
            self._wire_keys(message["wire_keys"])
        if "transports" in message:
            self._transports(message["transports"])
        self._topics(wanted)
        self._level(int(message.get("level", self._node.topology.level)))
        self._drain(desired=bool(message.get("drained", self._node.topology.node.drained)))
        self._quarantine(list(message.get("quarantined", [])))
        self._peers(message.get("peers"))
        self._faults(message["faults"])
        self._generators(message["traffic"])
        self._subscriptions(message.get("subscriptions", {}), message.get("ended", []))
        self._outcome.managed = sorted(self._managed)
        self._observe(message.get("generations", {}))
        with self._saving:
            self._version = int(message["version"])
            if self._written == self._changes and self._secrets_are_saved:
                self.saved_version = self._version
        return self._outcome

    @property
    def _secrets_are_saved(self) -> bool:
        """Else a start with the older files lets a revoked key in: the service sends all again."""
        return not self._outcome.errors.keys() & {"keys", "wire_keys"}

    @property
    def observed(self) -> dict[str, int]:
        """The generation in effect of every resource."""
        return self._observed

    def _observe(self, generations: dict[str, int]) -> None:
        self._pending |= generations
        held_back = self._outcome.errors.keys() | set(self._outcome.restart_needed)
        done = {ref: n for ref, n in self._pending.items() if ref not in held_back}
        self._pending = {ref: n for ref, n in self._pending.items() if ref in held_back}
        self._observed |= done
        self._outcome.observed = done

    def stop(self) -> None:
        """Stop example traffic, save the topology."""
        self._wanted.clear()
        for generator in self._traffic.values():
            generator.stop()
        self._traffic.clear()
        with self._saving:
            timer = self._timer
        if timer is not None:
            timer.cancel()
            self._save()

    def traffic(self) -> dict[str, Any]:
        """The figures of the generators, by name."""
        return {name: generator.counts() for name, generator in list(self._traffic.items())}

    # --- topics -----------------------------------------------------------------------------------

    def _topics(self, wanted: dict[str, dict[str, Any] | None]) -> None:
        running = {t.name: t for t in self._node.topics()}
        built: dict[str, TopicConfig] = {}
        gone: list[str] = []
        for name, raw in wanted.items():
            self._outcome.errors.pop(f"topic/{name}", None)
            if raw is None:
                self._managed.discard(name)
                gone.append(name)
                continue
            topic = self._built(name, raw)
            if topic is not None:
                built[name] = topic
        self._note(self._node.delete_topics(sorted(running.keys() & gone), keep_data=False))
        left = {name: t for name, t in running.items() if name not in gone}
        anew = {n: t for n, t in built.items() if _differs(left.get(n), t) == "recreate"}
        sound = self._checked(left, anew) if anew else {}
        self._managed |= built.keys() - (anew.keys() - sound.keys())
        for name in built.keys() - anew.keys():
            self._edit(name, built[name], left[name])
        replaced = sorted(left.keys() & sound.keys())
        self._note(self._node.delete_topics(replaced, keep_data=False, keep_readers=True))
        self._remade = set(replaced)
        self._note(self._node.create_topics(list(sound.values())))
        if wanted:
            self._save_soon()

    def _note(self, problems: dict[str, TidecastError]) -> None:
        self._outcome.errors |= {f"topic/{name}": str(each) for name, each in problems.items()}

    def _built(self, name: str, raw: dict[str, Any]) -> TopicConfig | None:
        known = {key: value for key, value in raw.items() if key in KNOWN}
        try:
            topic = msgspec.convert(known | {"name": name}, TopicConfig)
            transport = self._node.topology.transport(topic.transport).name
        except (msgspec.ValidationError, TidecastError) as problem:
            self._outcome.errors[f"topic/{name}"] = str(problem)
            return None
        return msgspec.structs.replace(topic, transport=transport)

    def _checked(
        self, running: dict[str, TopicConfig], changed: dict[str, TopicConfig]
    ) -> dict[str, TopicConfig]:
        """The changed topics that are sound and fit with the others; notes errors of the rest.

        Running topics were checked when they were made: only their given ids matter, so that a
        change of one topic among 10,000 costs little.
        """
        good = dict(changed)
        taken = {
            (t.transport, t.id): n
            for n, t in running.items()
            if n not in changed and t.id is not None
        }
        for name, topic in changed.items():
            other = taken.get((topic.transport, topic.id)) if topic.id is not None else None
            if other is not None:
                self._outcome.errors[f"topic/{name}"] = (
                    f"id: {topic.id}: topic {other} has the same on transport "
                    f"{topic.transport}: give one of them another id"
                )
                del good[name]
        while good:
            desired = list(good.values())
            try:
                topology_from(msgspec.structs.replace(self._node.topology, topics=desired))
            except ConfigError as problem:
                bad = self._blamed(problem.problems, desired)
                if not bad:
                    self._outcome.errors |= {f"topic/{name}": str(problem) for name in good}
                    return {}
                for name, text in bad.items():
                    self._outcome.errors[f"topic/{name}"] = text
                    del good[name]
            else:
                return good
        return good

    @staticmethod
    def _blamed(problems: list[str], desired: list[TopicConfig]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in problems:
            at = _AT_TOPIC.match(text)
            if at is not None:
                found.setdefault(desired[int(at.group(1))].name, _AT_TOPIC.sub("", text, count=1))
        return found

    def _edit(self, name: str, topic: TopicConfig, before: TopicConfig) -> None:
        changes = {
            key: getattr(topic, key)
            for key in LIVE_TOPIC_FIELDS
            if getattr(topic, key) != getattr(before, key)
        }
        try:
            if changes:
                self._node.edit_topic(name, changes)
        except TidecastError as problem:
            self._outcome.errors[f"topic/{name}"] = str(problem)

    def _keys(self, desired: list[dict[str, Any]]) -> None:
        """Set the keys of clients; the message has all of them."""
        self._outcome.errors.pop("keys", None)
        try:
            self._node.keys.learn(desired)
        except (TidecastError, OSError) as problem:
            self._outcome.errors["keys"] = str(problem)

    def _wire_keys(self, desired: dict[str, Any]) -> None:
        """Set the secrets of sealed transports, all of them; the node reads their file."""
        self._outcome.errors.pop("wire_keys", None)
        try:
            keep_wire_keys(self._node.data_dir, desired)
        except TidecastError as problem:
            self._outcome.errors["wire_keys"] = str(problem)

    # --- transports -------------------------------------------------------------------------------

    def _transports(self, wanted: dict[str, dict[str, Any]]) -> None:
        """Transports are opened when an engine starts: until then the file has the new ones.

        Of a transport with an error the file keeps the older settings.
        """
        self._outcome.restart_needed.clear()
        self._outcome.differs.clear()
        running = {t.name: t for t in self._node.topology.transports}
        saved = {t.name: t for t in self._store.topology.transports}
        built: list[TransportConfig] = []
        for name, raw in wanted.items():
            self._outcome.errors.pop(f"transport/{name}", None)
            try:
                built.append(msgspec.convert(raw | {"name": name}, TransportConfig))
            except msgspec.ValidationError as problem:
                self._outcome.errors[f"transport/{name}"] = str(problem)
                built += [saved[name]] if name in saved else []
        changed = [t.name for t in built if t != running.get(t.name)]
        gone = [name for name in running if name not in wanted]
        self._outcome.errors.pop("topology.yaml", None)
        if built and built != self._store.topology.transports:
            self._save_by(lambda: self._store.put_transports(built))
        for each in built:
            if each.name in changed:
                text = _difference(running.get(each.name), each)
                self._outcome.differs[f"transport/{each.name}"] = text
        for name in gone:
            text = "it was deleted and runs until this engine starts again: restart it"
            self._outcome.differs[f"transport/{name}"] = text
        self._outcome.restart_needed += [f"transport/{name}" for name in (*changed, *gone)]

    def _save_by(self, save: Callable[[], None]) -> bool:
        """Write the topology file; False: it could not be written."""
        try:
            save()
        except ConfigError as problem:
            self._outcome.errors["topology.yaml"] = str(problem)
            return False
        return True

    def _level(self, desired: int) -> None:
        """Write the cluster's level from now on, also after a start without the service."""
        self._outcome.errors.pop("level", None)
        try:
            self._node.set_level(desired)
        except ConfigError as problem:
            self._outcome.errors["level"] = str(problem)
            return
        if desired != self._store.topology.level:
            self._save_by(lambda: self._store.put_level(desired))

    def _quarantine(self, desired: list[int]) -> None:
        """Refuse the nodes that the service refuses. Faults that cut nodes off are set again."""
        node = self._node
        wanted = sorted({n for n in desired if n != node.id})
        if wanted == sorted(node.topology.node.quarantined):
            return
        with node.lock:
            about = msgspec.structs.replace(node.topology.node, quarantined=wanted)
            node.set_node_settings(about)
            for runtime in node.runtimes.values():
                set_quarantine(runtime, wanted)
        for transport, faults in node.get_faults().items():
            if faults.any:
                node.set_faults(transport, faults)

    def restore_peers(self) -> None:
        """Send to the peers of the last start until the service names them."""
        try:
            self._peers_kept = load_peers(self._node.data_dir)
        except ConfigError as problem:
            self._peers_kept = None
            _log.warning("%s", problem)
        self._node.set_peers(self._peers_kept or {})

    def announced(self, problems: dict[str, str]) -> None:
        """Transports whose address cannot be announced, or not to all nodes, with the reason."""
        self._unannounced = problems

    def _peers(self, raw: Any) -> None:
        """Send to these nodes from now on; an old service names no nodes, and changes none."""
        errors = self._outcome.errors
        for ref in [ref for ref in errors if ref == "peers" or ref.startswith("peers/")]:
            del errors[ref]
        errors |= {f"peers/{name}": text for name, text in self._unannounced.items()}
        if raw is None:
            return
        try:
            peers = checked(raw)
            problems = self._node.set_peers(peers)
            errors |= {f"peers/{name}": text for name, text in problems.items()}
            sound = {name: each for name, each in peers.items() if name not in problems}
            kept = {**(self._peers_kept or {}), **sound}
            if kept != self._peers_kept:
                save_peers(self._node.data_dir, kept)
                self._peers_kept = kept
        except ConfigError as problem:
            errors["peers"] = str(problem)

    def _drain(self, *, desired: bool) -> None:
        """Hand leased topics over, or take a share again; also after a start without the service.

        It is saved before it begins: an engine that is killed then takes no topic back.
        """
        if desired != self._store.topology.node.drained:
            self._save_by(lambda: self._store.put_drained(desired))
        if desired != self._node.topology.node.drained:
            with self._node.lock:
                about = msgspec.structs.replace(self._node.topology.node, drained=desired)
                self._node.set_node_settings(about)
            self._node.durable.leases.look()

    # --- faults, traffic --------------------------------------------------------------------------

    def _faults(self, desired: dict[str, dict[str, Any]]) -> None:
        before = self._node.get_faults()
        active = [name for name, each in before.items() if each.any]
        wanted: dict[str, dict[str, Any] | None] = {**dict.fromkeys(active), **desired}
        for transport, raw in wanted.items():
            self._outcome.errors.pop(f"fault/{transport}", None)
            try:
                settings = msgspec.convert(raw or {}, FaultSettings)
                if settings != before.get(transport):
                    self._node.set_faults(transport, settings)
            except (msgspec.ValidationError, TidecastError) as problem:
                if raw is not None:
                    self._outcome.errors[f"fault/{transport}"] = str(problem)

    def _generators(self, desired: dict[str, dict[str, Any]]) -> None:
        wanted: dict[str, dict[str, Any] | None] = {**dict.fromkeys(self._traffic), **desired}
        for name, raw in wanted.items():
            self._outcome.errors.pop(f"traffic/{name}", None)
            before = self._traffic.get(name)
            sound = before is not None and not before.problem and before.topic not in self._remade
            if before is not None and sound and raw == before.settings:
                continue
            if before is not None:
                del self._traffic[name]
                before.stop()
            if raw is None:
                continue
            try:
                self._traffic[name] = Traffic(self._node, raw)
            except TidecastError as problem:
                self._outcome.errors[f"traffic/{name}"] = str(problem)

    # --- durable subscriptions --------------------------------------------------------------------

    def _subscriptions(self, wanted: dict[str, dict[str, Any]], ended: list[list[str]]) -> None:
        """Make missing subscriptions, end ended ones; subscriptions of clients stay."""
        for _, name in ended:
            self._wanted.pop(name, None)
        self._wanted |= wanted
        there = {(s["pattern"], s["name"]): s for s in self._node.consumers.perform("list", {})}
        for pattern, name in ended:
            if (pattern, name) in there and name not in wanted:
                self._attempt(name, "delete", {"pattern": pattern, "name": name})
        for name, desired in wanted.items():
            self._outcome.errors.pop(f"subscription/{name}", None)
            if not self._elsewhere(desired["pattern"]):
                self._subscription(name, desired, there.get((desired["pattern"], name)))

    def _subscription(self, name: str, desired: dict[str, Any], now: dict[str, Any] | None) -> None:
        which = {"pattern": desired["pattern"], "name": name}
        if now is None:
            self._attempt(name, "create", which | desired["options"])
        if desired["paused"] != bool(now and now["paused"]):
            self._attempt(name, "pause" if desired["paused"] else "resume", which)

    def _elsewhere(self, pattern: str) -> bool:
        """Whether the queues are shared, and another engine owns them, with the subscription."""
        return pattern not in self._node.durable.topics and is_shared(self._node.context, pattern)

    def _queues_here(self, topic: DurableTopic) -> None:
        """Queues were opened: make their missing subscriptions now. In the conductor."""
        for name, desired in list(self._wanted.items()):  # another thread changes it
            known = (desired["pattern"], name) in self._node.consumers.subscriptions
            if topic.owner and desired["pattern"] == topic.config.name and not known:
                self._subscription(name, desired, None)

    def _attempt(self, name: str, action: str, arguments: dict[str, Any]) -> None:
        try:
            self._node.consumers.perform(action, arguments)
        except TidecastError as problem:
            self._outcome.errors[f"subscription/{name}"] = str(problem)

    # --- saving -----------------------------------------------------------------------------------

    def _save_soon(self) -> None:
        """Writing 10,000 topics takes long: changes that come together are written once."""
        with self._saving:
            self._changes += 1
            if self._timer is None:
                self._timer = threading.Timer(SAVE_AFTER_S, self._save)
                self._timer.daemon = True
                self._timer.start()

    def _save(self) -> None:
        with self._saving:  # a change from now on is for the next timer
            self._timer, changes = None, self._changes
        kept = {t.name for t in self._store.topology.topics} | set(self._managed)
        topics = [t for t in self._node.topics() if t.name in kept]
        if self._save_by(lambda: self._store.put_all(topics)):
            with self._saving:
                self._written = changes
                if changes != self._changes or not self._secrets_are_saved:
                    return
                self.saved_version = self._version
            self._on_saved()


def _difference(running: TransportConfig | None, wanted: TransportConfig) -> str:
    """The resources that run with other settings than desired, and the remedy."""
    if running is None:
        return "it is new and is opened when this engine starts again: restart it"
    fields = [
        f"{name}: runs with {getattr(running, name)}, wanted is {getattr(wanted, name)}"
        for name in wanted.__struct_fields__
        if getattr(running, name) != getattr(wanted, name)
    ]
    return f"{'; '.join(fields)}: restart this engine"


def _differs(before: TopicConfig | None, after: TopicConfig) -> str:
    """none, live, recreate."""
    if before is None:
        return "recreate"
    changed = {
        name
        for name in TopicConfig.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    }
    if not changed:
        return "none"
    return "live" if changed <= LIVE_TOPIC_FIELDS else "recreate"
