"""Durable topics whose records a storage beside their logs has to have before they are acked."""
