from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kai_lab_pipeline.report.text import clean, markdown, markdown_block, markdown_code, one_line

_ANY_TEXT = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=200)
_MARKUP = st.text(alphabet="`|\\<>&*_[]()!#~{}-+ .\nab1", max_size=60)


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def test_colours_cursor_moves_and_window_titles_are_gone() -> None:
    assert clean("\x1b[34mINFO\x1b[0m \x1b]0;title\x07run\x1b[2J", 100) == "INFO run"


def test_what_reorders_or_breaks_text_is_gone_and_letters_of_all_scripts_stay() -> None:
    assert clean("a\u202eb\x00c\ud800d\ufffee\x9bm 显卡 é 😀", 100) == "abcde 显卡 é 😀"


def test_long_text_is_cut_with_its_length() -> None:
    cut = clean("x" * 1_000_000, 100)
    assert cut == "x" * 100 + " … (cut, 1000000 characters in all)"
    assert clean("x" * 100, 100) == "x" * 100


def test_text_is_called_cut_when_only_escape_sequences_filled_the_part_that_was_read() -> None:
    assert "(cut, " in clean("\x1b[0m" * 1000 + "end", 10)


def test_one_line_joins_lines() -> None:
    assert one_line("  a\r\n\tb\n\nc ", 100) == "a b c"


@given(_ANY_TEXT)
def test_cleaned_text_stands_in_xml(text: str) -> None:
    element = ET.Element("e", {"a": one_line(text, 300)})
    element.text = clean(text, 300)
    assert ET.fromstring(ET.tostring(element, encoding="unicode")).text == (element.text or None)


@given(_MARKUP)
def test_escaped_markdown_reads_as_the_text_itself(text: str) -> None:
    html = _parser().render(f"x {markdown(text)} y")
    plain = ET.fromstring(f"<root>{html}</root>")
    assert [child.tag for child in plain] == ["p"]
    assert len(plain[0]) == 0
    assert "".join(plain.itertext()).split() == f"x {text} y".split()


@given(_MARKUP)
def test_a_table_cell_stays_one_cell(text: str) -> None:
    html = _parser().render(f"| a | b |\n|---|---|\n| {markdown(text)} | {markdown_code(text)} |\n")
    cells = ET.fromstring(f"<root>{html}</root>").findall(".//tbody/tr/td")
    assert len(cells) == 2
    for cell in cells:
        assert "".join(cell.itertext()).split() == text.split()


@given(_MARKUP)
def test_nothing_escapes_from_a_code_block(text: str) -> None:
    lines = tuple(text.split("\n"))
    tokens = _parser().parse(markdown_block(lines))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("text", ["a_b_c", "kai_release.sharing_enabled", "nvidia.com/gpu.memory"])
def test_names_stay_readable_in_the_source(text: str) -> None:
    assert markdown(text) == text
