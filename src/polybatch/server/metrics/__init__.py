"""What the server counts, in Prometheus' text format: vLLM's names where the meaning is the same, and our own."""
