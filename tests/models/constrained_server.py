"""A real model behind the chat API, held to the JSON schema of the request while it writes, as vLLM holds its models.

The model is a Llama of one layer with random weights over bytes, made here: what it says means nothing, and how it is
said is the grammar's doing (llguidance, one of those that vLLM has). So this is a peer that knows nothing of the node.
It enforces `json_schema` and `json_object` with a schema, passes both over if it is told to, as `transformers serve`
does, and stops in the middle of a word when it has used up its tokens.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
import torch
from embeddings_server import EmbeddingsServer, Handler
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

END = 256
CONTEXT = 64
"""Bytes that it reads before it writes another."""


class ByteModel:
    """`enforces`: whether what it is told about the form of an answer counts."""

    def __init__(self) -> None:
        self.enforces = True
        torch.manual_seed(11)
        config = LlamaConfig(
            vocab_size=END + 1,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=END,
        )
        self._model = LlamaForCausalLM(config).eval()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<end>"])
        self._tokenizer = tokenizer
        self._grammar = llguidance.LLTokenizer(tokenizer.to_str(), eos_token=END)
        # It would write for ever: names end at their first letters, and lists after an element or two.
        self._bias = torch.zeros(END + 1)
        for text, weight in {
            '"': 3.0,
            "{": 3.0,
            "]": 1.0,
            ",": 1.0,
            " ": -4.0,
            "\t": -4.0,
            "\n": -4.0,
            "\r": -4.0,
        }.items():
            self._bias[tokenizer.encode(text).ids[0]] = weight

    def complete(self, prompt: str, schema: Any, max_tokens: int) -> tuple[str, bool]:
        """What it writes, and whether it came to an end."""
        matcher = None
        if schema is not None and self.enforces:
            matcher = llguidance.LLMatcher(
                self._grammar, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
            )
            if matcher.is_error():
                raise ValueError(matcher.get_error())
        ids = self._tokenizer.encode(prompt).ids
        # Its words are drawn, by the prompt alone: the greatest of random logits would be the same again and again.
        drawn = torch.Generator().manual_seed(sum(ids))
        written: list[int] = []
        mask = llguidance.numpy.allocate_token_bitmask(1, END + 1)
        with torch.inference_mode():
            while len(written) < max_tokens:
                read = torch.tensor([(ids + written)[-CONTEXT:]])
                logits = self._model(input_ids=read, use_cache=False).logits[0, -1].float() + self._bias
                if matcher is not None:
                    llguidance.numpy.fill_next_token_bitmask(matcher, mask)
                    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: END + 1].astype(bool)
                    logits[~torch.from_numpy(allowed)] = -torch.inf
                token = int(torch.multinomial(torch.softmax(logits, 0), 1, generator=drawn))
                if token == END:
                    return self._tokenizer.decode(written), True
                written.append(token)
                if matcher is not None:
                    matcher.consume_token(token)
                    if matcher.is_stopped():
                        return self._tokenizer.decode(written), True
        return self._tokenizer.decode(written), False


class ConstrainedServer(EmbeddingsServer):
    """`formats`: the types of `response_format` that it knows; others get 400. One answer at a time."""

    def __init__(self, model: ByteModel) -> None:
        super().__init__(_Chat)
        self.model = model
        self.formats = {"json_schema", "json_object", None}
        self.writing = threading.Lock()
        self.replies: list[str] = []


class _Chat(Handler):
    server: ConstrainedServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = request.get("response_format") or {}
        if asked.get("type") not in self.server.formats:
            self._refuse(f"response_format {asked.get('type')} is not supported")
            return
        schema = asked.get("schema") or asked.get("json_schema", {}).get("schema")
        prompt = "\n".join(f"{message['role']}: {message['content']}" for message in request["messages"])
        try:
            with self.server.writing:
                text, is_done = self.server.model.complete(prompt, schema, request["max_tokens"])
        except ValueError as error:
            self._refuse(f"the schema cannot be enforced: {error}")
            return
        self.server.replies.append(text)
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if is_done else "length"}
        self.reply(200, json.dumps({"object": "chat.completion", "choices": [choice]}))

    def _refuse(self, why: str) -> None:
        self.reply(400, json.dumps({"error": {"message": why}}))
