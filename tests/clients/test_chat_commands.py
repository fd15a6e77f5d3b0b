"""The chat's slash commands and the conversation that they change."""

import json
from pathlib import Path

import pytest

from clients.chat.commands import CommandError, is_command, run_command
from clients.chat.conversation import Conversation


@pytest.fixture
def conversation() -> Conversation:
    conversation = Conversation(system="be brief")
    conversation.add_turn("one?", "1")
    return conversation


def contents(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages_with("next?")]


def test_a_call_gets_system_message_turns_and_question(conversation: Conversation) -> None:
    assert conversation.messages_with("two?") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two?"},
    ]


def test_only_one_slash_makes_a_command() -> None:
    assert is_command("/help") and is_command("/nonsense")
    assert not is_command("//usr is a path") and not is_command("help")


def test_system_replaces_and_removes_the_system_message(conversation: Conversation) -> None:
    run_command("/system  be kind ", conversation)
    assert contents(conversation) == ["be kind", "one?", "1", "next?"]
    run_command("/system", conversation)
    assert contents(conversation) == ["one?", "1", "next?"]


def test_clear_forgets_the_turns_alone(conversation: Conversation) -> None:
    run_command("/set top_k 5", conversation)
    run_command("/clear", conversation)
    assert contents(conversation) == ["be brief", "next?"]
    assert conversation.settings == {"top_k": 5}


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("/set temperature 0.7", {"temperature": 0.7}),
        ("/set model my model", {"model": "my model"}),
        ('/set stop ["a", "b"]', {"stop": ["a", "b"]}),
        ("/set ignore_eos true", {"ignore_eos": True}),
        ("/set temperature NaN", {"temperature": "NaN"}),
    ],
)
def test_set_takes_json_or_else_text(
    conversation: Conversation, line: str, settings: dict[str, object]
) -> None:
    run_command(line, conversation)
    assert conversation.settings == settings


def test_set_shows_the_settings_and_gives_them_back(conversation: Conversation) -> None:
    assert "server's" in run_command("/set", conversation)
    run_command("/set seed 7", conversation)
    assert run_command("/set", conversation) == "seed 7"
    run_command("/set seed", conversation)
    assert conversation.settings == {}


@pytest.mark.parametrize("name", ["temprature", "n", "stream", "timeout", "extra_body", "messages"])
def test_what_cannot_be_set_is_refused(conversation: Conversation, name: str) -> None:
    with pytest.raises(CommandError, match=f"no setting '{name}'; there are .*temperature"):
        run_command(f"/set {name} 1", conversation)


def test_save_writes_a_request_that_would_go_on(conversation: Conversation, tmp_path: Path) -> None:
    conversation.add_turn("žluť?", "🙂")
    run_command("/set seed 7", conversation)
    run_command(f"/save {tmp_path / 'with space.json'}", conversation)
    saved = json.loads((tmp_path / "with space.json").read_text(encoding="utf-8"))
    assert saved == {"seed": 7, "messages": conversation.messages_with("x")[:-1]}


def test_save_says_why_it_cannot(conversation: Conversation, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="name of a file"):
        run_command("/save", conversation)
    with pytest.raises(CommandError, match=r"cannot write .*: No such file or directory"):
        run_command(f"/save {tmp_path}/none/file", conversation)


def test_help_lists_every_command(conversation: Conversation) -> None:
    shown = run_command("/help", conversation)
    for name in ("/system", "/save", "/clear", "/set", "/help", "/exit"):
        assert name in shown


def test_an_unknown_command_is_refused(conversation: Conversation) -> None:
    with pytest.raises(CommandError, match="no command /sytem; /help lists them"):
        run_command("/sytem x", conversation)
