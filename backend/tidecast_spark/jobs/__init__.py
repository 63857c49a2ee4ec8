"""The jobs of the pipeline: archive, replay, rollup, backfill, capacity report."""
