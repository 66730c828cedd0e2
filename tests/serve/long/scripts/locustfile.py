"""Users of Locust: completions, streamed and not."""

from locust import FastHttpUser, between, task


class User(FastHttpUser):
    wait_time = between(0.05, 0.2)

    @task(2)
    def whole(self):
        self.client.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 5})

    @task(1)
    def streamed(self):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "stream": True}
        with self.client.post("/v1/chat/completions", json=body, catch_response=True) as answer:
            if not answer.text.rstrip().endswith("data: [DONE]"):
                answer.failure("the stream has no end")
