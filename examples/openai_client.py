"""Talk to a running server with the openai package: a streamed answer, then one in a form.

polybatch serve PROGRAM &
python examples/openai_client.py [BASE_URL]
"""

import sys

from openai import OpenAI

base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

with OpenAI(base_url=base_url, api_key="none") as client:
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Name three colours."}]
    for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=40, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
    form = {"structured_outputs": {"choice": ["red", "green", "blue"]}}
    answer = client.chat.completions.create(model=model, messages=messages, extra_body=form)
    print("one of three:", answer.choices[0].message.content)
