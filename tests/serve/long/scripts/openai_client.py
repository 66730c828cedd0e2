"""What the client `openai` makes of a server; run in an environment of its own with the URL."""

import json
import sys

import openai

url, model = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
assert [one.id for one in client.models.list()] == [model]
prompt = "Say something about queues."
chat = [{"role": "user", "content": prompt}]

whole = client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0)
chunks = list(
    client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
)
assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

answer = client.chat.completions.create(
    model=model, messages=chat, max_completion_tokens=8, n=2, logprobs=True
)
assert len(answer.choices) == 2
assert answer.choices[0].logprobs.content
parts = list(client.chat.completions.create(model=model, messages=chat, max_completion_tokens=8, stream=True))
assert parts[0].choices[0].delta.role == "assistant"
assert parts[-1].choices[0].finish_reason in ("stop", "length")

schema = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
formed = client.chat.completions.create(
    model=model, messages=chat, max_completion_tokens=40, response_format=form, temperature=0
)
assert isinstance(json.loads(formed.choices[0].message.content)["yes"], bool)

for wrong, kind in (
    ({"model": "other", "prompt": prompt}, openai.NotFoundError),
    ({"model": model, "prompt": prompt, "max_tokens": 10**8}, openai.BadRequestError),
):
    try:
        client.completions.create(**wrong)
    except kind as error:
        print("refused:", error.body["message"])
    else:
        raise AssertionError(f"{wrong} was served")
print("openai", openai.__version__, "ok")
