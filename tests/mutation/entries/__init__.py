"""All mutations, by the part of the platform that they break."""

from __future__ import annotations

from tests.mutation.entries import (
    archiver,
    consumers,
    control,
    leases,
    live,
    sealing,
    storage,
    streams,
    tables,
)
from tests.mutation.entry import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *storage.MUTATIONS,
    *archiver.MUTATIONS,
    *leases.MUTATIONS,
    *consumers.MUTATIONS,
    *live.MUTATIONS,
    *sealing.MUTATIONS,
    *streams.MUTATIONS,
    *tables.MUTATIONS,
    *control.MUTATIONS,
)
