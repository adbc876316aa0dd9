"""Tool calls: read out of what a model wrote, or forced by a grammar."""
