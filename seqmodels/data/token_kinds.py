"""What each byte of a Python source text belongs to, as the standard library's tokenizer says."""

import io
import keyword
import tokenize

KINDS = ("other", "name", "keyword", "operator", "string", "number", "comment")
OTHER, NAME, KEYWORD, OPERATOR, STRING, NUMBER, COMMENT = range(len(KINDS))

_KIND_OF_TYPE = {
    tokenize.OP: OPERATOR,
    tokenize.STRING: STRING,
    tokenize.NUMBER: NUMBER,
    tokenize.COMMENT: COMMENT,
}
# From 3.12 on an f-string (3.14: a t-string) is several tokens, where it was one STRING before.
_OPENING = ("FSTRING_START", "TSTRING_START")
_CLOSING = ("FSTRING_END", "TSTRING_END")


def label_bytes(source: bytes) -> bytes:
    """The kind of each byte of a UTF-8 source without byte order mark, as an index into `KINDS`.

    Whitespace, line ends and continuation backslashes are "other"; soft keywords are names. An
    f-string is a string from its prefix to its last quote, its replacement fields included, so
    that every Python version answers the same.

    Raises ValueError if the source is not UTF-8 or does not tokenize.
    """
    text = source.decode("utf-8")
    lines = text.split("\n")  # as StringIO.readline splits: "\r" or "\f" end no line
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offset(position: tuple[int, int]) -> int:
        """The tokenizer counts lines from 1 and columns in characters; this counts bytes."""
        row, column = position[0] - 1, position[1]
        if not lines[row].isascii():
            column = len(lines[row][:column].encode())
        return starts[row] + column

    kinds = bytearray(len(source))

    def mark(begin: int, end: int, kind: int) -> None:
        kinds[begin:end] = bytes([kind]) * (end - begin)

    first = depth = 0  # where the outermost f-string begins, and how many are open
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            type_name = tokenize.tok_name[token.type]
            if type_name in _OPENING:
                first = first if depth else offset(token.start)
                depth += 1
            elif type_name in _CLOSING:
                depth -= 1
                if not depth:
                    mark(first, offset(token.end), STRING)
            elif not depth and (kind := _kind(token)):
                mark(offset(token.start), offset(token.end), kind)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"source does not tokenize: {error}") from error
    return bytes(kinds)


def _kind(token: tokenize.TokenInfo) -> int:
    if token.exact_type in (tokenize.ERRORTOKEN, tokenize.OP):  # no operator that Python has
        raise SyntaxError(f"unexpected {token.string!r} in line {token.start[0]}")
    if token.type == tokenize.NAME:
        return KEYWORD if keyword.iskeyword(token.string) else NAME
    return _KIND_OF_TYPE.get(token.type, OTHER)
