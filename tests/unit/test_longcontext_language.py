"""Facts and their answers in `longcontext.language`."""

import torch

from entformer.data.text import TextBatch
from entformer.longcontext.language import _answer_loss
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMAttentionConfig, LMConfig
from entformer.tasks.language_modeling import token_losses


def test_answers_after_one_reading_of_the_prompt_lose_as_in_whole_rows() -> None:
    torch.manual_seed(0)
    attention = LMAttentionConfig(normalizer="entmax", alpha="learned")
    model = CausalLM(LMConfig(vocab_size=50, layers=2, heads=4, width=16, hidden=16, attention=attention)).eval()
    prompt, answers = torch.randint(50, (1, 120)), [torch.randint(50, (1, length)) for length in (3, 1, 2, 3)]
    with torch.no_grad():
        state = model.start()
        first = model.step(prompt, state)
        for answer in answers:
            row = torch.cat([prompt, answer], 1)
            losses, _ = token_losses(model, TextBatch(row[:, :-1], row[:, 1:], None, (0,)))
            expected = losses[0, -answer.shape[1] :].mean().item()
            assert abs(_answer_loss(model, first, state, answer) - expected) < 1e-5
            assert state.length == prompt.shape[1]
