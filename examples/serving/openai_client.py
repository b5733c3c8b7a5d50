"""The `openai` package against a serving scheduler.

python -m ray_multicluster_scheduler.serving --config config.yaml     # its instances: kind: openai
python openai_client.py http://127.0.0.1:8102/v1
"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="passed on to the instance")
model = client.models.list().data[0].id
answer = client.chat.completions.with_raw_response.create(
    model=model, messages=[{"role": "user", "content": "hello there"}]
)
print(answer.parse().choices[0].message.content, "from", answer.headers["x-rmcs-instance"])
stream = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "one word after another"}], stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content, end="", flush=True)
print()
