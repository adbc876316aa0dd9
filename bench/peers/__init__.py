"""The same decode, prefill and end-to-end work on polybatch and on what users would pick instead."""
