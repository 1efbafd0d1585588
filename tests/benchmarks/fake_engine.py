"""An engine for the tests of ``compare.py``, which runs no model: its speed and its mistakes are options."""

from __future__ import annotations

import time

from protocol import serve


class Fake:
    def __init__(self, options):
        if "refuses" in options:
            raise RuntimeError(options["refuses"])
        self.options = options
        self.version = "fake 1"
        self.calls = 0

    def generate(self, requests, *, cold, sampling):
        self.calls += 1
        print("a library may print what it likes")
        mistake = self.options.get("mistakes", {}).get(str(self.calls))
        if mistake == "dies":
            raise SystemExit(3)
        if mistake == "raises":
            raise ValueError("it went wrong")
        if mistake == "hangs":
            time.sleep(60)
        per_token = self.options["per_token"] * (1 if cold else 0.5)
        counts = [request["max_tokens"] for request in requests]
        first = [per_token * len(request["prompt"]) for request in requests]
        samples = sampling.get("n", 1)
        return {
            "seconds": samples * sum(counts) * per_token,
            "first": first,
            "last": [start + per_token * (count - 1) for start, count in zip(first, counts, strict=True)],
            "tokens": [[self.options.get("token", 7)] * (count - (mistake == "stops early")) for count in counts],
            "computed": sum(len(request["prompt"]) for request in requests) + samples * (sum(counts) - len(counts)),
        }


if __name__ == "__main__":
    serve(Fake)
