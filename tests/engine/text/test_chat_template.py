"""Messages to a prompt, with transformers' own rendering as the second opinion."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import PreTrainedTokenizerFast

from engine.text import SlowTemplateError, TemplateError, Tokenizer, flatten_content
from scheduler import ParameterError

CHATML = """\
{%- for message in messages %}
    {{- '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %}
"""
# Begins with BOS, trims, refuses roles: in the manner of Llama 2.
STRICT = """\
{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}
{% if message.role == 'user' %}[INST] {{ message.content | trim }} [/INST]{% else %}
{% generation %} {{ message.content | trim }} {{ eos_token }}{% endgeneration %}{% endif %}
{% endfor %}
"""
# The rest of what templates use.
LAVISH = """\
{%- set state = namespace(system='none', count=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set state.system = message.content %}{% continue %}
    {%- endif %}
    {%- set state.count = state.count + 1 %}
    {%- if state.count > 2 %}{% break %}{% endif %}
    {{- message | tojson }}{{ dict(a=1) | tojson(indent=2) }}
{%- endfor %}
{%- if tools is not none or documents is not none %}{{ 'tools' }}{% endif %}
{{ state.system }} {{ strftime_now('%Y') }} {{ '<>&' }}
{% if add_generation_prompt %}>{% endif %}
"""
USER = {"role": "user", "content": "Hi <b>žluť</b> & 🙂 \n"}
ASSISTANT = {"role": "assistant", "content": "  Sure, 'x'.\n", "name": None}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture(scope="module")
def with_template(make_model_dir, new_backend):
    def load(template: str | None, **files: object) -> Tokenizer:
        return Tokenizer.load(make_model_dir(new_backend("byte_level"), template=template, **files))

    return load


@pytest.mark.parametrize("template", [CHATML, STRICT, LAVISH], ids=["chatml", "strict", "lavish"])
@pytest.mark.parametrize("family", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("generation_prompt", [True, False])
def test_prompt_ids_equal_those_of_transformers(
    make_model_dir, new_backend, template, family, generation_prompt
):
    folder = make_model_dir(new_backend(family), template=template)
    tokenizer = Tokenizer.load(folder)
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    conversations = [[USER], [USER, ASSISTANT, USER]]
    if template != STRICT:
        conversations.append([SYSTEM, USER, ASSISTANT, USER])
    for messages in conversations:
        text = tokenizer.render_chat(messages, add_generation_prompt=generation_prompt)
        expected = oracle.apply_chat_template(
            messages, add_generation_prompt=generation_prompt, tokenize=True
        )
        assert tokenizer.encode(text, add_special_tokens=False) == expected["input_ids"]


def test_a_template_that_writes_bos_yields_it_once(with_template):
    tokenizer = with_template(STRICT)
    ids = tokenizer.encode(tokenizer.render_chat([USER]), add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SYSTEM, USER], "System role not supported"),
        ([USER, USER], "Roles must alternate user/assistant"),
    ],
)
def test_a_refusal_carries_the_template_s_own_text(with_template, messages, text):
    with pytest.raises(TemplateError) as refusal:
        with_template(STRICT).render_chat(messages)
    assert str(refusal.value) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + none }}",
        "{{ messages[0].absent.field }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ namespace(__class__=1) }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
    ],
)
def test_a_template_that_fails_is_an_error_of_ours(with_template, template):
    with pytest.raises(TemplateError, match="the chat template failed"):
        with_template(template).render_chat([USER])


ENDLESS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "macros": (
        "{% macro grow(n) %}{% if n %}{{ grow(n - 1) }}{{ grow(n - 1) }}{% endif %}{% endmacro %}"
        "{{ grow(60) }}"
    ),
    "recursion": (
        "{% for a in [range(9)] recursive %}"
        "{% if loop.depth < 60 %}{{ loop([a]) }}{{ loop([a]) }}{% endif %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_would_run_for_ever_is_stopped(with_template, template):
    with pytest.raises(SlowTemplateError, match=r"takes more than 0\.05 s"):
        with_template(template).render_chat([USER], max_seconds=0.05)


def test_a_model_without_a_template_says_so(with_template):
    tokenizer = with_template(None)
    assert not tokenizer.has_chat_template
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.render_chat([USER])
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


@pytest.mark.parametrize(
    ("in_config", "file", "expected"),
    [
        ("config", None, "config"),
        ("config", "file", "file"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], None, "d"),
    ],
)
def test_where_a_template_is_found(with_template, in_config, file, expected):
    tokenizer = with_template(file, tokenizer_config={"chat_template": in_config})
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat([USER]) == expected


@pytest.mark.parametrize("text", ["Sure:\n", "Sure: ", " Sure", "", "  \n", "<|user|>\n", "Hi"])
@pytest.mark.parametrize("template", [CHATML, STRICT], ids=["chatml", "strict"])
def test_a_continued_message_ends_the_prompt_as_it_is(with_template, template, text):
    tokenizer = with_template(template)
    before = tokenizer.render_chat([USER], add_generation_prompt=True)
    messages = [USER, {"role": "assistant", "content": text}]
    prompt = tokenizer.render_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert prompt.startswith(before)
    assert prompt.removeprefix(before).removeprefix(" ") in (text, text.removeprefix(" "))
    assert prompt.endswith(text)


def test_a_continued_message_may_be_a_list_of_parts(with_template):
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B "}]
    prompt = with_template(CHATML).render_chat(
        [USER, {"role": "assistant", "content": parts}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert prompt.endswith("<|assistant|>\nA\nB ")


@pytest.mark.parametrize(
    ("messages", "generation_prompt"),
    [([USER, ASSISTANT], True), ([USER], False), ([USER, {"role": "assistant"}], False)],
)
def test_what_cannot_be_continued_is_refused(with_template, messages, generation_prompt):
    with pytest.raises(ParameterError, match="continue_final_message") as refusal:
        with_template(CHATML).render_chat(
            messages, add_generation_prompt=generation_prompt, continue_final_message=True
        )
    assert refusal.value.param == "continue_final_message"


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0].content }}", "{{ messages[-1].content | upper }}"],
)
def test_a_template_that_alters_the_message_cannot_continue_it(with_template, template):
    with pytest.raises(TemplateError, match="cannot be continued"):
        with_template(template).render_chat(
            [USER, ASSISTANT], add_generation_prompt=False, continue_final_message=True
        )


def test_text_parts_are_joined_by_one_newline(with_template):
    tokenizer = with_template(CHATML)
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    assert flatten_content(parts) == "A\nB"
    assert tokenizer.render_chat([{"role": "user", "content": parts}]) == tokenizer.render_chat(
        [{"role": "user", "content": "A\nB"}]
    )


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "A"}, {"type": "image_url", "image_url": {"url": "http://x"}}],
        [{"type": "text"}],
        [{"type": "text", "text": 5}],
        ["A"],
        {"type": "text", "text": "A"},
        5,
    ],
)
def test_content_that_is_no_text_is_refused(content):
    with pytest.raises(ParameterError, match=r"messages\[3\]: content") as refusal:
        flatten_content(content, param="messages[3]")
    assert refusal.value.param == "messages[3]"


def test_no_messages_are_refused(with_template):
    with pytest.raises(ParameterError, match="at least one message"):
        with_template(CHATML).render_chat([])


def test_the_caller_s_messages_stay_as_they_are(with_template):
    messages = [dict(USER), {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]
    with_template(CHATML).render_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert messages == [USER, {"role": "assistant", "content": [{"type": "text", "text": "A"}]}]


def test_threads_share_one_template(with_template):
    tokenizer = with_template(LAVISH)
    conversations = [[SYSTEM, {"role": "user", "content": f"question {i}"}] for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        rendered = list(pool.map(tokenizer.render_chat, conversations))
    assert rendered == [tokenizer.render_chat(messages) for messages in conversations]
