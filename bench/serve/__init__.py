"""A server under load: what dynamic batching buys, and what HTTP costs."""
