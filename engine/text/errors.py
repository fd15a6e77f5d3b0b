"""What can go wrong between a model folder and a prompt's token ids."""


class TokenizerError(ValueError):
    """A model folder whose tokenizer or chat template cannot be loaded; the message is one line."""


class TemplateError(ValueError):
    """The chat template refused the messages or failed on them.

    The message is the template's own text where the template raised it.
    """


class SlowTemplateError(TemplateError):
    """The chat template was stopped: it took more than the time it was given."""
