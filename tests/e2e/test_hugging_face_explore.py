"""The explorer of a Hugging Face decoder in a browser: a text is continued, the next token shown, an alpha changed."""

import socket
import threading
import time

import tokenizers
import torch
import transformers as t
import uvicorn
from playwright.sync_api import Browser, expect

import entformer as ef
from entformer.explore.app import create_app

from .page_driver import open_address

WORDS = ["<unk>", "the", "cat", "dog", "sat", "on", "mat", "and"]
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_a_text_is_continued_and_an_alpha_changed(browser: Browser) -> None:
    torch.manual_seed(0)
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = t.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=8, eos_token_id=None, **SIZES))
    ef.hf.sparsify(model, alpha=1.5)
    app = create_app((model, tokenizer), name="tiny", max_tokens=40, timeout=300.0, examples=["the cat sat on the"])
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    try:
        for page in open_address(browser, address, address):
            expect(page.locator("#go")).to_have_text("Continue")
            expect(page.locator(".candidate").first).to_be_visible()
            expect(page.locator(".next-token li").first).to_be_visible()
            expect(page.locator('#grid [data-key="decoder.0.1"]')).to_be_visible()
            page.click('.presets button[data-alpha="1"]')
            expect(page.locator('[data-side="changed"].outcome')).to_be_visible()
    finally:
        server.should_exit = True
        thread.join(30)
