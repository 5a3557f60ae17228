"""Prompts: the text is the file's, and every token carries what the token rules and the tables need."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from tiny_models import make_tokenizer
from transformers import PreTrainedTokenizerFast

from collapse.errors import Refusal
from collapse.prompts import COLUMNS, is_punctuation, read_prompt, read_prompts_table, token_limit, tokenize

RESOURCES = Path(__file__).resolve().parents[2] / "resources" / "prompts"
LONG = "The ferry left in the fog, and nobody saw it turn back. " * 20


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: make_tokenizer(kind) for kind in ("bytes", "bytes-bos", "wordpiece", "unigram")}


def column(table, name):
    return table[name].to_pylist()


# Text


def prompt_file(tmp_path, content):
    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Brontë « — 。", "Brontë « — 。"),
        ("one line\n", "one line"),
        ("one line\r\n", "one line"),
        ("a blank line at the end\n\n", "a blank line at the end\n"),
        ("windows\r\n\r\n", "windows\r\n"),
        ("two\nlines\n", "two\nlines"),
        ("two\r\nlines\r\n", "two\r\nlines"),
        ("  spaces stay  \n", "  spaces stay  "),
        ("\n\nso do leading lines", "\n\nso do leading lines"),
    ],
)
def test_one_newline_at_the_end_belongs_to_the_file_and_all_else_to_the_prompt(tmp_path, content, text):
    assert read_prompt(prompt_file(tmp_path, content.encode()))[0] == text


def test_a_byte_order_mark_does_not_become_a_token(tmp_path):
    # Editors on Windows write it unasked: it belongs to the file, as the last newline does.
    text, digest = read_prompt(prompt_file(tmp_path, b"\xef\xbb\xbfThe ferry left.\n"))
    assert (text, digest) == read_prompt(prompt_file(tmp_path, b"The ferry left.\n"))


def test_the_hash_is_of_the_text_and_not_of_the_end_of_the_file(tmp_path):
    bare, line, windows = (read_prompt(prompt_file(tmp_path, b"text" + end))[1] for end in (b"", b"\n", b"\r\n"))
    assert bare == line == windows == "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"
    assert read_prompt(prompt_file(tmp_path, b"text\n\n"))[1] != bare


@pytest.mark.parametrize("content", [b"", b"\n", b" \t\r\n\n", "\u00a0\n".encode(), b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_text_is_refused(tmp_path, content):
    path = prompt_file(tmp_path, content)
    with pytest.raises(Refusal, match="no text") as refusal:
        read_prompt(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "byte"), [("é".encode("latin-1"), 0), ("text é".encode("latin-1"), 5), ("a".encode("utf-16"), 0)]
)
def test_a_file_that_is_not_utf8_is_refused_with_the_place_and_what_to_do(tmp_path, content, byte):
    path = prompt_file(tmp_path, content)
    with pytest.raises(Refusal, match=rf"not UTF-8 \(byte {byte}\).*Save it as UTF-8") as refusal:
        read_prompt(path)
    assert str(path) in str(refusal.value)


# The table of prompts


def write_table(path, rows, columns=COLUMNS):
    path.write_text("\n".join("\t".join(row) for row in [columns, *rows]) + "\n", encoding="utf-8")
    return path


def a_row(name, **changes):
    return [
        (dict.fromkeys(COLUMNS, "x") | {"name": name, "file": f"{name}.txt"} | changes)[column] for column in COLUMNS
    ]


def test_rows_are_found_by_name(tmp_path):
    table = read_prompts_table(
        write_table(tmp_path / "prompts.tsv", [a_row("a"), a_row("b", description='says "so", Brontë')])
    )
    assert list(table) == ["a", "b"]
    assert table["b"]["file"] == "b.txt"
    assert table["b"]["description"] == 'says "so", Brontë'


def test_a_name_that_stands_twice_is_refused(tmp_path):
    path = write_table(tmp_path / "prompts.tsv", [a_row("a"), a_row("a", file="other.txt")])
    with pytest.raises(Refusal, match="'a' stands twice") as refusal:
        read_prompts_table(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_refused(tmp_path, column):
    kept = [name for name in COLUMNS if name != column]
    path = write_table(tmp_path / "prompts.tsv", [["x"] * len(kept)], kept)
    with pytest.raises(Refusal, match=column) as refusal:
        read_prompts_table(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("content", ["", "\t".join(COLUMNS) + "\n"])
def test_a_table_without_rows_is_refused(tmp_path, content):
    path = tmp_path / "prompts.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(Refusal, match="one row per prompt"):
        read_prompts_table(path)


@pytest.mark.parametrize("fields", [1, len(COLUMNS) - 1, len(COLUMNS) + 1])
def test_a_row_with_too_few_or_too_many_fields_is_refused(tmp_path, fields):
    path = write_table(tmp_path / "prompts.tsv", [a_row("whole"), (a_row("ragged") + ["x"])[:fields]])
    with pytest.raises(Refusal, match="ragged"):
        read_prompts_table(path)


def test_every_prompt_of_the_repository_reads_and_every_file_has_a_row():
    table = read_prompts_table(RESOURCES / "prompts.tsv")
    assert {row["file"] for row in table.values()} == {path.name for path in RESOURCES.glob("*.txt")}
    texts = {name: read_prompt(RESOURCES / row["file"])[0] for name, row in table.items()}
    assert all(text.strip() for text in texts.values())
    assert len(set(texts.values())) == len(texts)


def test_the_table_of_the_repository_is_filled_in():
    with open(RESOURCES / "prompts.tsv", encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert all(row[column].strip() for row in rows for column in COLUMNS)
    assert all(int(row["gpt2_tokens"]) > 0 for row in rows)


def test_repeated_tokens_is_264_dots():
    assert read_prompt(RESOURCES / "repeated_tokens.txt")[0] == " ".join(["."] * 264)


# Tokens


def test_token_columns_have_the_types_of_the_states_table(tokenizers):
    ids, table, _ = tokenize(tokenizers["wordpiece"], "The ferry, the fog.", 64)
    assert table.schema == pa.schema(
        [
            ("position", pa.int32()),
            ("token_id", pa.int32()),
            ("token", pa.string()),
            ("is_special", pa.bool_()),
            ("is_first", pa.bool_()),
            ("is_punctuation", pa.bool_()),
        ]
    )
    assert column(table, "position") == list(range(len(ids)))
    assert column(table, "token_id") == ids
    assert column(table, "is_first") == [True] + [False] * (len(ids) - 1)


def test_ids_are_those_of_the_tokenizer_alone(tokenizers):
    for tokenizer in tokenizers.values():
        ids, _, _ = tokenize(tokenizer, "The ferry left.", 64)
        assert ids == tokenizer("The ferry left.")["input_ids"]


def test_a_token_is_text_and_not_the_vocabulary_s_spelling(tokenizers):
    text = "The ferry left in the fog."
    _, table, _ = tokenize(tokenizers["bytes"], text, 64)
    assert "".join(column(table, "token")) == text
    _, table, _ = tokenize(tokenizers["unigram"], "The ferry", 64)
    assert column(table, "token") == ["[CLS]", "The", "ferry", "[SEP]"]


def test_the_space_before_punctuation_stays_in_its_token(tokenizers):
    _, table, _ = tokenize(tokenizers["bytes"], "fog . it .", 64)
    assert " ." in column(table, "token")
    assert "".join(column(table, "token")) == "fog . it ."


def special(tokenizer, text, limit=64):
    _, table, record = tokenize(tokenizer, text, limit)
    return column(table, "is_special"), record["first_token_is_special"]


def test_special_tokens_are_those_that_the_tokenizer_adds(tokenizers):
    assert special(tokenizers["wordpiece"], "the ferry") == ([True, False, False, True], True)
    assert special(tokenizers["unigram"], "The ferry") == ([True, False, False, True], True)
    flags, first = special(tokenizers["bytes-bos"], "The ferry")
    assert first and flags[0] and not any(flags[1:])
    flags, first = special(tokenizers["bytes"], "The ferry")
    assert not first and not any(flags)


def test_a_special_token_spelt_out_in_the_prompt_is_special(tokenizers):
    assert special(tokenizers["wordpiece"], "the [SEP] ferry")[0] == [True, False, True, False, True]
    assert special(tokenizers["bytes"], "<|endoftext|>")[0] == [True]


def test_an_unknown_word_is_content(tokenizers):
    # Special are [CLS], [SEP] and a first token: what the vocabulary lacks is still a word of the prompt.
    _, table, _ = tokenize(tokenizers["wordpiece"], "the \u4e2d ferry", 64)
    assert column(table, "token")[2] == "[UNK]"
    assert column(table, "is_special") == [True, False, False, False, True]


@pytest.mark.parametrize(
    "token", [".", ",", "«", "»", "。", "—", "$", "’", "“", "…", "¿", "€", "+", "#", " .", "),", "\u3001", "→"]
)
def test_punctuation_and_symbols_of_every_script_are_punctuation(token):
    assert is_punctuation(token)


@pytest.mark.parametrize(
    "token", ["a", "é", "中", "5", "²", "", " ", "\n", "\t ", "a.", "'s", "$5", "##a", "\ufffd", " \ufffd", "\u0301"]
)
def test_letters_digits_spaces_and_broken_characters_are_not_punctuation(token):
    assert not is_punctuation(token)


def test_punctuation_is_flagged_by_the_decoded_token(tokenizers):
    for kind in ("wordpiece", "unigram"):
        _, table, _ = tokenize(tokenizers[kind], "ferry, « $ — 。", 64)
        flagged = [t for t, p in zip(column(table, "token"), column(table, "is_punctuation")) if p]
        assert flagged == [",", "«", "$", "—", "。"]


def test_a_special_token_is_never_punctuation():
    tokenizer = make_tokenizer("wordpiece", extra_special_tokens=["¶"])
    _, table, _ = tokenize(tokenizer, "fog ¶ .", 64)
    flags = dict(zip(column(table, "token"), zip(column(table, "is_special"), column(table, "is_punctuation"))))
    assert flags["¶"] == (True, False)
    assert flags["."] == (False, True)


def test_a_prompt_that_fits_is_not_cut(tokenizers):
    ids, _, record = tokenize(tokenizers["wordpiece"], "the ferry", 4)
    assert record == {
        "n_tokens_untruncated": 4,
        "token_limit": 4,
        "is_truncated": False,
        "first_token_is_special": True,
    }
    assert len(ids) == 4


def test_a_cut_is_recorded_and_keeps_the_start_and_the_separator(tokenizers):
    for kind in ("wordpiece", "unigram"):
        whole, _, _ = tokenize(tokenizers[kind], LONG, 10_000)
        ids, table, record = tokenize(tokenizers[kind], LONG, 9)
        assert record["is_truncated"] and record["token_limit"] == 9 and record["n_tokens_untruncated"] == len(whole)
        assert ids == whole[:8] + whole[-1:]
        assert column(table, "token")[0] == "[CLS]" and column(table, "token")[-1] == "[SEP]"
        assert column(table, "is_special") == [True] + [False] * 7 + [True]


def test_a_cut_without_a_separator_keeps_the_first_tokens(tokenizers):
    for kind in ("bytes", "bytes-bos"):
        whole, _, _ = tokenize(tokenizers[kind], LONG, 10_000)
        ids, _, record = tokenize(tokenizers[kind], LONG, 9)
        assert ids == whole[:9] and record["is_truncated"] and record["n_tokens_untruncated"] == len(whole)


def test_a_limit_that_special_tokens_alone_exceed_is_refused(tokenizers):
    with pytest.raises(Refusal, match="limit of 1 tokens leaves no room.*max_tokens"):
        tokenize(tokenizers["wordpiece"], LONG, 1)


def test_the_start_is_kept_whatever_side_the_tokenizer_prefers_to_cut():
    # A states table starts at position 0 of the prompt.
    left = make_tokenizer("bytes", truncation_side="left")
    assert tokenize(left, LONG, 9)[0] == tokenize(make_tokenizer("bytes"), LONG, 9)[0]


def test_padding_and_truncation_stored_in_a_tokenizer_do_not_reach_the_prompt(tmp_path):
    # all-MiniLM-L6-v2 ships a tokenizer.json that pads to 128 and cuts at 128.
    stored = make_tokenizer("wordpiece")
    stored.backend_tokenizer.enable_padding(length=40, pad_token="[PAD]", pad_id=0)
    stored.backend_tokenizer.enable_truncation(max_length=6)
    path = tmp_path / "tokenizer.json"
    stored.backend_tokenizer.save(str(path))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    ids, table, record = tokenize(
        PreTrainedTokenizerFast(tokenizer_file=str(path), **names), "the ferry left in the fog", 64
    )
    assert column(table, "token") == ["[CLS]", "the", "ferry", "left", "in", "the", "fog", "[SEP]"]
    assert record["n_tokens_untruncated"] == len(ids) == 8


def test_a_prompt_without_tokens_is_refused(tokenizers):
    with pytest.raises(Refusal, match="no token"):
        tokenize(tokenizers["bytes"], "", 64)


def test_the_limit_is_the_smallest_of_config_positions_and_tokenizer():
    def limit(most, positions, tokenizer, offset=0):
        config = SimpleNamespace(max_position_embeddings=positions)
        return token_limit(most, config, SimpleNamespace(model_max_length=tokenizer), offset)

    assert limit(512, 1024, 2048) == 512
    assert limit(2048, 1024, 4096) == 1024
    assert limit(2048, 1024, 128) == 128
    # The first rows of the position table that no token can use (RoBERTa's two) are no positions.
    assert limit(2048, 514, 4096, offset=2) == 512


def test_a_tokenizer_without_a_limit_and_a_model_without_a_position_table_set_none():
    unlimited = make_tokenizer("bytes")
    assert unlimited.model_max_length > 1e20
    limit = token_limit(700, SimpleNamespace(max_position_embeddings=None), unlimited, 0)
    assert limit == 700 and isinstance(limit, int)
    assert token_limit(700, SimpleNamespace(), unlimited, 0) == 700
    assert token_limit(700, SimpleNamespace(max_position_embeddings=64), unlimited, 0) == 64
