"""Speculative decoding: guesses at the next tokens, verified by the program several at a time.

A step that verifies K drafted tokens keeps those that the program would have chosen itself, plus the token that it
chooses after them, so the answers are those of decoding one token at a time (Leviathan et al. 2023, "Fast inference
from transformers via speculative decoding"; Chen et al. 2023, "Accelerating large language model decoding with
speculative sampling").
"""
