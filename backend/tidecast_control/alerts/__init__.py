"""Alert rules, alerts, silences, webhooks."""
