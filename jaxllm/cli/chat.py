"""``jaxllm chat``: a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from jaxllm.cli import console
from jaxllm.cli.conversation import Conversation
from jaxllm.cli.messages import MessageReader
from jaxllm.cli.options import Debug, EngineOptions, ModelOptions, Quiet, SamplingOptions
from jaxllm.errors import JaxLLMError, ParameterError

if TYPE_CHECKING:
    from jaxllm.llm import LLM
    from jaxllm.sampling_params import SamplingParams

HELP = '''\
/reset          forget the conversation (also /clear)
/system TEXT    set the system message and forget the conversation; without TEXT, remove it
/help           this
/exit           leave (also /quit, Ctrl-D)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next; """ begins and ends several lines.'''


def chat(
    model: ModelOptions,
    sampling: SamplingOptions,
    engine: EngineOptions,
    system: Annotated[str | None, typer.Option("--system", show_default=False, help="The system message.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D or /exit leaves, /help says more.

    Where standard input is no terminal, each line of it is a message. Exit code 1 then says that one failed.
    """
    console.set_up(quiet=quiet, debug=debug)
    sampling.check()

    from jaxllm.cli.startup import open_checkpoint, start, uncollected

    with uncollected():
        checkpoint = open_checkpoint(model)
        if checkpoint.tokenizer.chat_template is None:
            raise ParameterError("model", checkpoint.source.name, "a model with a chat template, which this one lacks; "
                                                                  "'jaxllm generate' completes texts")
        params = checkpoint.sampling_params(sampling)
        greeting = Conversation(checkpoint.tokenizer, 1 << 30, system=system).prompt("Hello, who are you?")[0]
        llm = start(checkpoint, model, engine, num_seqs=1, num_tokens=len(greeting["prompt_token_ids"]), params=params)
    context = llm.engine.config.max_model_len
    session = Session(llm, Conversation(checkpoint.tokenizer, context, system=system, room=params.max_tokens), params)
    console.note(f"{checkpoint.source.name}, {context} tokens of context. /help lists the commands; Ctrl-C stops an "
                 "answer, Ctrl-D leaves.")
    session.run(MessageReader())
    if session.failed:
        raise typer.Exit(1)


class Session:
    """The loop of questions and answers."""

    def __init__(self, llm: LLM, conversation: Conversation, params: SamplingParams) -> None:
        self.failed = False
        self._llm = llm
        self._conversation = conversation
        self._params = params

    def run(self, reader: MessageReader) -> None:
        """Answer messages until there are no more."""
        while True:
            try:
                # Python looks for Ctrl-C where a loop begins anew: that must be in here.
                while self._take(reader.read()):
                    pass
                return
            except EOFError:
                if reader.interactive:
                    console.write("\n")
                return
            except KeyboardInterrupt:  # not during an answer
                if not reader.interactive:
                    raise
                console.note("\n(Ctrl-D or /exit leaves)")
            except JaxLLMError as error:
                self._fail(str(error))

    def _take(self, message: str) -> bool:
        """Do what a message wants; whether to go on."""
        if message.lstrip().startswith("/"):
            return self._obey(message.strip())
        if message.strip():
            self._answer(message)
        return True

    def _obey(self, command: str) -> bool:
        """Do what a command says; whether to go on after it."""
        name, _, text = command.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name in ("/reset", "/clear"):
            self._conversation.reset()
            console.note("the conversation is forgotten")
        elif name == "/system":
            self._conversation.system = text.strip() or None
            self._conversation.reset()
            console.note(f"the system message is {'set' if text.strip() else 'removed'}, the conversation is forgotten")
        elif name == "/help":
            console.note(HELP)
        else:
            self._fail(f"there is no command {name}; /help lists them")
        return True

    def _answer(self, question: str) -> None:
        from jaxllm.cli.streaming import stream_text, summary, was_interrupted

        prompt, forgotten = self._conversation.prompt(question)
        context, used = self._llm.engine.config.max_model_len, len(prompt["prompt_token_ids"])
        if forgotten:
            turns = "turn of the conversation is" if forgotten == 1 else f"{forgotten} turns of the conversation are"
            console.note(f"the context of {context} tokens is full: the oldest {turns} forgotten")
        room = context - used
        limit = room if self._params.max_tokens is None else min(self._params.max_tokens, room)
        output = stream_text(self._llm.stream(prompt, self._params.replace(max_tokens=limit)), console.write)
        console.write("\n")
        answer = output.outputs[0] if output is not None and output.outputs else None
        if output is not None and output.error is not None:
            self._fail(output.error.message)
        if answer is not None and answer.text:
            # An answer that was cut short stays, as the user has seen it.
            self._conversation.add(question, answer.text)
        if output is None or was_interrupted(output):
            console.note("(interrupted)")
        else:
            console.note(summary(output))
            if answer is not None and len(answer.token_ids) == room:
                console.note(f"the context of {context} tokens is full: the answer ends here")

    def _fail(self, message: str) -> None:
        self.failed = True
        console.error(message)
