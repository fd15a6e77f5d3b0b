import io

from engine.loading import Progress, console_reporter


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_log_a_message_is_one_line_and_a_quarter_another():
    stream = io.StringIO()
    with console_reporter(stream) as report:
        for done in range(101):
            report(Progress("downloading", done, 100))
        report(Progress("converting"))
        report(Progress("converting"))
    assert stream.getvalue().splitlines() == [
        "downloading",
        "downloading (25 %)",
        "downloading (50 %)",
        "downloading (75 %)",
        "downloading (100 %)",
        "converting",
    ]


def test_in_a_terminal_every_message_has_its_bar():
    stream = Terminal()
    with console_reporter(stream) as report:
        report(Progress("downloading", 1, 2))
        report(Progress("converting"))
    assert "downloading" in stream.getvalue()
    assert "converting" in stream.getvalue()


def test_percent_is_known_only_with_an_end():
    assert Progress("m").percent is None
    assert Progress("m", 5, 0).percent is None
    assert Progress("m", 5, 20).percent == 25
    assert Progress("m", 30, 20).percent == 100
