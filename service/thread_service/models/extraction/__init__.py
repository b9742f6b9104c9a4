"""Extraction: an instruct model reads a text and says which entities and relationships it holds.

`interface` is what every extractor offers. `extractor` reads one document, window by window, and says what a failure
means; `chat_api` is one request, `prompt` what is asked, `answer` what is made of the reply; `vllm` is a server of our
own, and `choice` says which of them a node runs.
"""
