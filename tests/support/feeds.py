"""Adapters that `--adapter TOPIC=MODULE:FUNCTION` names in tests."""

from __future__ import annotations

from tidecast.queues.generator import GeneratorAdapter, Recipe

RECIPE = Recipe(seed=3, batch_records=10)


def made() -> GeneratorAdapter:
    """Two queues of 50 records."""
    return GeneratorAdapter(2, 50, RECIPE)
