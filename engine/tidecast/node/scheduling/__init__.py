"""Records with a delivery time: which of them wait for which subscriptions, and cancelling them."""
