"""What a grammar can have wrong with it."""


class GrammarProblemError(ValueError):
    """A schema, expression or grammar is malformed, cannot be enforced or allows no text; the message says why."""
