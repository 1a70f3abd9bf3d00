"""The next token from the logits."""

import torch


def sample(logits: torch.Tensor, temperature: float) -> int:
    """A token id from `logits` [vocab]; the most likely one when `temperature` is 0."""
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits.float() / temperature, dim=-1), num_samples=1))
