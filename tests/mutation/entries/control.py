"""Rights, sessions, keys, plans, applying and the live feed; the gateway's door."""

from __future__ import annotations

from tests.mutation.entry import Mutation

_CONTROL = "backend/tidecast_control/"
_KIT = "backend/tidecast_control/kit/"
_API = "backend/tidecast_control/api/"
_AUTH = "backend/tidecast_control/auth/"
_SOCKET = "backend/tidecast_control/live/socket.py"
_ACCESS = "engine/tidecast/access.py"
_NODE_RIGHTS = "engine/tidecast/node/access/rights.py"
_GATEWAY = "engine/tidecast/gateway/server.py"
_RIGHTS = "tests/control/test_rights.py::"
_RACES = "tests/control/test_races.py::"
_SECURITY = "tests/control/test_security.py::"
_RESOURCES = "tests/control/test_resources.py::"
_APPLY = "tests/control/test_apply.py::"
_FRAMES = "tests/unit/test_frame_rights.py::"
_KEYS = "tests/unit/test_gateway_keys.py::"
_IDENTITIES = "tests/control/test_identities.py::"
_REQUESTS = "tests/control/test_requests.py::"
_LINK = "tests/control/test_link.py::"
_FEED = "tests/control/test_feed.py::"
_VAULT = "tests/control/test_vault.py::"

MUTATIONS = (
    Mutation(
        "csrf-put-alone",
        _API + "http.py",
        "    if actor.csrf is not None and request.method not in SAFE_METHODS:",
        '    if actor.csrf is not None and request.method == "PUT":',
        (_RIGHTS + "test_each_write_with_a_cookie_needs_its_csrf_token",),
        "Only PUT needs the CSRF token.",
    ),
    Mutation(
        "if-match-any",
        _API + "http.py",
        '            if etag is None or ("*" not in tags and etag not in tags):',
        "            if etag is None:",
        (_RESOURCES + "test_preconditions",),
        "If-Match asks only whether the resource exists.",
    ),
    Mutation(
        "etag-without-uid",
        _API + "http.py",
        "    return f'\"{uid[:8]}-{generation}\"'",
        "    return f'\"{uid[:0]}-{generation}\"'",
        (_RESOURCES + "test_preconditions",),
        "A resource that was deleted and created again has the ETag of the old one.",
    ),
    Mutation(
        "dry-run-writes",
        _API + "resources.py",
        "    if dry_run:\n        return Outcome(plan, None, True)\n    if action",
        '    if dry_run and action != "update":\n'
        "        return Outcome(plan, None, True)\n    if action",
        (
            _REQUESTS + "test_a_dry_run_changes_nothing_and_says_so",
            _RESOURCES + "test_a_dry_run_names_the_impact_and_does_nothing",
        ),
        "A dry run of a change makes it.",
    ),
    Mutation(
        "dry-run-deletes",
        _API + "resources.py",
        "    if dry_run:\n        return Outcome(plan, None, True)\n"
        "    if row.deletion_protection:",
        "    if row.deletion_protection:",
        (_RESOURCES + "test_dry_runs_of_put_and_delete_do_nothing",),
        "A dry run of a deletion deletes.",
    ),
    Mutation(
        "dry-run-applies",
        _API + "resources.py",
        "    if dry_run:\n        savepoint.rollback()\n    else:",
        "    if dry_run and not session:\n        savepoint.rollback()\n    else:",
        (
            _REQUESTS + "test_a_dry_run_changes_nothing_and_says_so",
            "tests/control/test_apply.py",
        ),
        "A dry run of `apply` applies.",
    ),
    Mutation(
        "plan-hides-data-loss",
        _API + "resources.py",
        "    if shrinks and (old == 0 or new < old):",
        "    if shrinks and new > old:",
        (_RESOURCES + "test_a_dry_run_names_the_impact_and_does_nothing",),
        "A plan does not name that records are deleted.",
    ),
    Mutation(
        "patch-unlocked",
        _API + "resources.py",
        "    row = row_of(session, kind, name, lock=not dry_run)\n    raw = merged(",
        "    row = row_of(session, kind, name, lock=False)\n    raw = merged(",
        (_RESOURCES + "test_two_patches_at_once_lose_nothing",),
        "Of two changes at once one is lost.",
    ),
    Mutation(
        "replace-without-right",
        _API + "resources.py",
        "        needs += rights.to_replace(kind.name, name, row.spec)",
        "        needs += []",
        (_RIGHTS + "test_a_change_needs_the_rights_of_before_and_after",),
        "A key changes what it has no right on by naming something else.",
    ),
    Mutation(
        "delete-without-right",
        _API + "resources.py",
        '    actor.need(f"{kind.rights}:write", *rights.to_replace(kind.name, name, row.spec))',
        '    actor.need(f"{kind.rights}:write")',
        (_RIGHTS + "test_each_route_does_what_role_and_scopes_say",),
        "A scoped key deletes resources of other topics.",
    ),
    Mutation(
        "protection-ignored",
        _API + "resources.py",
        "    if row.deletion_protection:",
        "    if row.deletion_protection and dry_run:",
        (_RESOURCES + "test_deletion_protection_and_use",),
        "A protected resource is deleted.",
    ),
    Mutation(
        "audit-left-out",
        _API + "resources.py",
        "        audit.record(session, actor, action, kind.name, name, old, new)",
        "        pass",
        (_SECURITY + "test_writes_and_denials_are_audited",),
        "Changes are not audited.",
    ),
    Mutation(
        "apply-half",
        "backend/tidecast_control/apply/service.py",
        "    if errors:\n        raise ProblemError("
        '"invalid_request", f"{len(errors)} problem(s)", '
        "errors[:ERRORS_MAX])\n    if wanted.prune:",
        "    if wanted.prune:",
        (_APPLY + "test_one_error_and_nothing_is_done",),
        "Documents beside a wrong one are applied.",
    ),
    Mutation(
        "prune-all",
        "backend/tidecast_control/apply/service.py",
        "            if row.managed_by != wanted.managed_by or (kind.name, row.name) in kept:",
        "            if (kind.name, row.name) in kept:",
        (_APPLY + "test_prune_deletes_only_what_it_manages",),
        "`apply --prune` deletes what others manage.",
    ),
    Mutation(
        "right-of-one-need",
        _KIT + "actor.py",
        "            return all(self.covers(*need) for need in needs)",
        "            return any(self.covers(*need) for need in needs)",
        (_RIGHTS + "test_what_reaches_beyond_the_scopes_is_refused",),
        "A request that needs several rights passes with one.",
    ),
    Mutation(
        "scoped-admin-unbounded",
        _KIT + "actor.py",
        '        return self.kind != "key" or (self.role == "admin" and not self.scopes)',
        '        return self.kind != "key" or self.role == "admin"',
        (_RIGHTS + "test_scopes_that_would_not_bound_are_refused", "tests/control/test_rights.py"),
        "Scopes do not bound a key of an admin.",
    ),
    Mutation(
        "grant-beyond-own",
        _KIT + "actor.py",
        '        if role == "admin" or lacks or self.shown is not None:',
        '        if role == "admin":',
        (_RIGHTS + "test_nobody_grants_more_than_they_have",),
        "A key grants rights that it lacks.",
    ),
    Mutation(
        "dead-letters-anywhere",
        _KIT + "rights.py",
        '            if spec.get("dead_letter"):  # engines publish there on its behalf\n'
        '                yield Need("publish", spec["dead_letter"])\n',
        "",
        (
            _RIGHTS + "test_dead_letters_go_where_the_key_may_publish",
            _RIGHTS + "test_what_reaches_beyond_the_scopes_is_refused",
        ),
        "A subscription sends dead letters to a topic where its creator may not publish.",
    ),
    Mutation(
        "traffic-publishes-anywhere",
        _KIT + "rights.py",
        '            yield Need("manage", topic)\n            yield Need("publish", topic)\n'
        '        case "rate_limit":',
        '            yield Need("manage", topic)\n        case "rate_limit":',
        (_RIGHTS + "test_a_schedule_publishes_only_with_the_right_to",),
        "Test traffic is published without the right to publish.",
    ),
    Mutation(
        "session-never-ends",
        _AUTH + "service.py",
        "    if found is None or found.expires_at < now or found.disabled:",
        "    if found is None or found.disabled:",
        (_SECURITY + "test_a_session_ends_absolutely",),
        "A login never ends.",
    ),
    Mutation(
        "session-idle-never-ends",
        _AUTH + "service.py",
        "    if now - found.used_at > idle:",
        "    if now < found.used_at - idle:",
        (_SECURITY + "test_an_unused_session_ends",),
        "A login that nobody uses does not end.",
    ),
    Mutation(
        "key-revoked-works",
        _AUTH + "service.py",
        "    if found is None or found.revoked_at is not None or _is_over(found.expires_at, now):",
        "    if found is None or _is_over(found.expires_at, now):",
        (_SECURITY + "test_keys_expire_and_are_revoked",),
        "A revoked key works.",
    ),
    Mutation(
        "disabled-user-logs-in",
        _AUTH + "service.py",
        "    if user is None or not fits or user.disabled or user.password_hash != stored:",
        "    if user is None or not fits or user.password_hash != stored:",
        (_SECURITY + "test_a_session_ends",),
        "A disabled user logs in.",
    ),
    Mutation(
        "old-password-logs-in",
        _AUTH + "service.py",
        " or user.disabled or user.password_hash != stored:",
        " or user.disabled:",
        (_RACES + "test_a_login_during_a_change_of_password_gives_no_session",),
        "A login succeeds with a password that was changed while it was checked.",
    ),
    Mutation(
        "secrets-without-a-snapshot",
        "backend/tidecast_control/db.py",
        'execution_options={"isolation_level": "REPEATABLE READ"}',
        "",
        (_RACES + "test_a_topology_that_is_built_during_a_revocation_has_no_new_secret",),
        "The statements of a snapshot see what others committed in between.",
    ),
    Mutation(
        "throttle-forgets",
        _AUTH + "throttle.py",
        "                name.failed(now_s)\n                known.total.failed(now_s)",
        "                known.total.failed(now_s)",
        (_SECURITY + "test_login_is_throttled_and_says_when",),
        "Passwords of one user may be guessed as fast as the network allows.",
    ),
    Mutation(
        "feed-any-origin",
        _SOCKET,
        "    return urlsplit(origin).netloc == host or origin in ctx.settings.allowed_origins",
        "    return bool(origin) or urlsplit(origin).netloc == host",
        (_RIGHTS + "test_pages_of_other_origins_get_no_live_feed",),
        "A page of another site reads the live feed with the user's cookie.",
    ),
    Mutation(
        "feed-skips-on-resume",
        _SOCKET,
        "            self._sent[name] = after\n            return",
        "            self._sent[name] = channel.seq\n            return",
        (_LINK + "test_the_live_feed_resumes_by_sequence",),
        "A live feed that resumes skips what it missed.",
    ),
    Mutation(
        "feed-forgets-frames",
        _SOCKET,
        "            self._sent[name] = channel.seq\n"
        "            for text in self._texts(name, channel, frames):\n"
        "                await self._send(text)\n",
        "            for text in self._texts(name, channel, frames):\n"
        "                await self._send(text)\n"
        "            self._sent[name] = channel.seq\n",
        (_FEED + "test_what_changes_while_a_frame_leaves_is_sent_with_the_next",),
        "Frames that a channel gets while a viewer's frame leaves are never sent to it.",
    ),
    Mutation(
        "feed-keeps-rights",
        _SOCKET,
        "        if (actor.role, actor.scopes) != (before.role, before.scopes) "
        "or not self._still_allowed():",
        "        if actor.name != before.name:",
        (_RIGHTS + "test_a_live_feed_loses_its_rights_with_the_role",),
        "Somebody who lost rights keeps what is watched.",
    ),
    Mutation(
        "feed-payloads-to-all",
        _SOCKET,
        '        if kind == "messages" and not self._actor.may("messages:read", '
        'Need("read_payloads", rest)):',
        '        if kind == "none":',
        (_RIGHTS + "test_a_live_tail_withholds_payloads",),
        "The live feed shows payloads to those who may not read them.",
    ),
    Mutation(
        "enrolment-used-twice",
        "backend/tidecast_control/nodes/identity.py",
        "    if token is None or token.expires_at < utc_now() or token.uses >= token.uses_max:",
        "    if token is None or token.expires_at < utc_now():",
        (_IDENTITIES + "test_of_two_with_one_token_the_second_is_refused",),
        "An enrolment token enrols any number of engines.",
    ),
    Mutation(
        "scope-covers-more",
        _ACCESS,
        '        if i >= len(narrow) or narrow[i] == ">":\n            return False',
        "        if i >= len(narrow):\n            return False",
        (_KEYS + "test_what_is_covered_is_matched",),
        "A scope on `a.*` covers the pattern `a.>`.",
    ),
    Mutation(
        "scope-any-right",
        _ACCESS,
        "        return any(right in s.rights and covers(s.pattern, pattern) for s in self.scopes)",
        "        return any(covers(s.pattern, pattern) for s in self.scopes)",
        (_KEYS + "test_what_its_scopes_do_not_say_is_denied",),
        "A scope gives every right on its topics.",
    ),
    Mutation(
        "key-expired-works",
        "engine/tidecast/node/access/keys.py",
        "        if key is None or key.over(self._now()):",
        "        if key is None:",
        ("tests/unit/test_gateway_keys.py",),
        "A key works after it has expired.",
    ),
    Mutation(
        "consume-creates-without-manage",
        _NODE_RIGHTS,
        '    if access.may("manage", pattern):\n        return options',
        '    if access.may("subscribe", pattern):\n        return options',
        (_FRAMES + "test_a_key_without_manage_joins_what_is_there",),
        "A key that may only subscribe creates subscriptions that hold back retention.",
    ),
    Mutation(
        "unknown-frame-allowed",
        "engine/tidecast/api/operations.py",
        '    return (("manage", EVERY_TOPIC),)',
        "    return ()",
        (_FRAMES + "test_a_frame_that_is_not_listed_takes_everything",),
        "A frame that the table does not list needs no right.",
    ),
    Mutation(
        "dead-letter-right-unasked",
        _NODE_RIGHTS,
        '    for name in ("dead_letter", "to"):  # engines publish there on its behalf',
        '    for name in ("dead_letter",):  # engines publish there on its behalf',
        (_FRAMES + "test_each_action_on_subscriptions_takes_the_rights_of_what_it_does",),
        "A re-drive publishes where the key may not.",
    ),
    Mutation(
        "events-of-all-topics",
        _NODE_RIGHTS,
        "    return not topic or access.may_hear_of(served_topic(topic))",
        "    return True",
        (_FRAMES + "test_events_of_other_topics_are_not_heard",),
        "Clients hear of topics that their key does not cover.",
    ),
    Mutation(
        "gateway-no-token",
        _GATEWAY,
        '        if scheme.lower() != "bearer" or self._access(digest) is None:',
        '        if scheme.lower() != "bearer":',
        (_KEYS + "test_unknown_tokens_are_counted_and_told",),
        "Any token opens the gateway.",
    ),
    Mutation(
        "gateway-revoked-stays",
        _GATEWAY,
        "            if session.access != self._access(session.digest):",
        "            if session.access is None:",
        (_KEYS + "test_a_revoked_key_ends_its_sessions",),
        "The sessions of a revoked key go on.",
    ),
    Mutation(
        "gateway-resumed-by-another-key",
        _GATEWAY,
        "            and session.digest == digest\n",
        "",
        (_KEYS + "test_a_session_is_resumed_with_the_key_that_began_it",),
        "A session is resumed with another key than it was opened with.",
    ),
    Mutation(
        "gateway-quota-ignored",
        "engine/tidecast/gateway/quotas.py",
        "            if most is not None and held + n > most:",
        "            if most is not None and held > most:",
        (_KEYS + "test_the_clients_of_a_key_share_its_quota",),
        "The clients of a key hold more than its quota.",
    ),
    Mutation(
        "gateway-open-without-keys",
        _GATEWAY,
        "    if not (is_loopback(host) or keys_come or node.keys):",
        "    if not (is_loopback(host) or keys_come or node):",
        (_KEYS + "test_without_keys_only_loopback_is_listened_on",),
        "A gateway without keys is reached from other hosts.",
    ),
    Mutation(
        "gateway-session-without-secret",
        _GATEWAY,
        "            and hmac.compare_digest(session.key.encode(), hello.key.encode())\n",
        "",
        (_KEYS + "test_a_session_is_resumed_with_the_key_that_began_it",),
        "A session is resumed without its own secret.",
    ),
    Mutation(
        "credential-revoked-works",
        "backend/tidecast_control/nodes/identity.py",
        "    if _fits(state, before) or _fits(state, shown()):",
        "    if state:",
        (_IDENTITIES + "test_an_identity_that_ends_takes_link_and_leases_with_it",),
        "An engine whose credential was revoked stays connected.",
    ),
    Mutation(
        "credential-one-look",
        "backend/tidecast_control/nodes/identity.py",
        "    if _fits(state, before) or _fits(state, shown()):",
        "    if _fits(state, before):",
        (_IDENTITIES + "test_a_rotation_that_ends_between_two_looks_dismisses_nobody",),
        "A rotation that ends while the service looks dismisses its engine.",
    ),
    Mutation(
        "vault-place-ignored",
        _CONTROL + "vault.py",
        "encrypt(nonce, secret.encode(), place.encode())",
        'encrypt(nonce, secret.encode(), b"")',
        (_VAULT + "test_a_secret_opens_at_its_place_alone",),
        "A sealed secret opens in another row.",
    ),
    Mutation(
        "vault-older-key-seals-on",
        _CONTROL + "vault.py",
        'return text if text.startswith(f"{_PREFIX}{self._first}:")',
        "return text if text.startswith(_PREFIX)",
        (_VAULT + "test_a_new_key_on_top_seals_all_anew",),
        "A key that was replaced must be kept for ever.",
    ),
    Mutation(
        "vault-webhook-call-readable",
        _CONTROL + "alerts/evaluate.py",
        'url=vault.seal(url, secrets.call_place(call, "url"))',
        "url=url",
        (_VAULT + "test_no_secret_is_in_the_database",),
        "A dump of the database has the URLs of webhooks whose calls wait.",
    ),
)
