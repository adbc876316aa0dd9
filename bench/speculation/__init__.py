"""What speculative decoding gains on text that repeats itself, and what it costs on text that does not."""
