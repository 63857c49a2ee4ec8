"""Many documents at once: plan, apply, prune, export."""
