"""What one engine step consists of, as far as its duration is concerned."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, init=False)
class StepFeatures:
    """The only thing a latency model sees, and the row an engine logs.

    A prefill sequence computes T new tokens on top of P tokens already in the KV cache; a decode
    sequence computes one token on top of its context. All counts are sums over the sequences that
    compute something in the step, on one model replica (not divided by the TP degree).
    """

    prefill_seqs: int
    """Sequences computing a prompt (or recomputing one after a preemption)."""
    prefill_tokens: int
    """Sum of T."""
    prefill_pairs: int
    """Causal query-key pairs of the prefills: sum of T*P + T*(T+1)/2."""
    prefill_kv_tokens: int
    """KV entries the prefills read back: sum of P."""
    prefill_prompt_pairs: float
    """Sum of T*(length + T/2), length being what the prefill has to compute in the end (the prompt, and
    after a preemption what had been emitted too): the attention measure `trained-physics` was fitted with."""
    decode_seqs: int
    """Sequences computing one token."""
    decode_kv_tokens: int
    """KV entries the decodes read: sum of their contexts, the new token not counted."""
    max_context: int
    """Longest context among all sequences, the new tokens not counted; -1 where nobody keeps track."""
    emitted_rows: int
    """Sequences that emit a token when the step ends (rows through the LM head)."""
    constrained_rows: int
    """Those among them whose next token a grammar constrains: the host computes a mask for each."""
    shared_kv_tokens: int
    """KV entries of running sequences in pages that others hold too, for each but one of these: what is read
    again. Without them the entries read are distinct."""
    scanned_requests: int
    """Waiting requests that the host looked up in the prefix cache to plan the step: a policy that orders by
    the cache looks at all of them, once for each that it admits and once for the one that has to wait."""

    def __init__(
        self,
        prefill_seqs: int = 0,
        prefill_tokens: int = 0,
        prefill_pairs: int = 0,
        prefill_kv_tokens: int = 0,
        prefill_prompt_pairs: float = 0.0,
        decode_seqs: int = 0,
        decode_kv_tokens: int = 0,
        max_context: int = 0,
        emitted_rows: int = 0,
        constrained_rows: int = 0,
        shared_kv_tokens: int = 0,
        scanned_requests: int = 0,
    ) -> None:
        """Spelled out, since native code would run a generated one as Python, at every step."""
        self.prefill_seqs = prefill_seqs
        self.prefill_tokens = prefill_tokens
        self.prefill_pairs = prefill_pairs
        self.prefill_kv_tokens = prefill_kv_tokens
        self.prefill_prompt_pairs = prefill_prompt_pairs
        self.decode_seqs = decode_seqs
        self.decode_kv_tokens = decode_kv_tokens
        self.max_context = max_context
        self.emitted_rows = emitted_rows
        self.constrained_rows = constrained_rows
        self.shared_kv_tokens = shared_kv_tokens
        self.scanned_requests = scanned_requests

    @property
    def tokens(self) -> int:
        """Tokens through the dense layers."""
        return self.prefill_tokens + self.decode_seqs

    @property
    def seqs(self) -> int:
        """Sequences in the step."""
        return self.prefill_seqs + self.decode_seqs

    def after(self, steps: int) -> StepFeatures:
        """The features of a pure decode step after `steps` more of its kind: contexts have grown."""
        if self.prefill_seqs:
            raise ValueError("only a pure decode step repeats itself")
        return StepFeatures(
            decode_seqs=self.decode_seqs,
            decode_kv_tokens=self.decode_kv_tokens + steps * self.decode_seqs,
            max_context=self.max_context + steps if self.max_context >= 0 else -1,
            emitted_rows=self.emitted_rows,
            constrained_rows=self.constrained_rows,
            shared_kv_tokens=self.shared_kv_tokens,
            scanned_requests=self.scanned_requests,
        )


SELDOM = ("constrained_rows", "shared_kv_tokens", "scanned_requests")
"""Features that are 0 in most runs: a log has them where they are not."""
FEATURE_NAMES = tuple(field.name for field in fields(StepFeatures) if field.name not in SELDOM)
"""Those that every log has."""
