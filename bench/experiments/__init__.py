"""The three experiments of dynamic batching, and a fourth: what a step costs beside a program made for it alone."""
