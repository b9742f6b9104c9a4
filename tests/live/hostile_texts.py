"""Strings that break software: what a caller may send as a text, a name or an id, and must get back unchanged."""

from __future__ import annotations

_FAMILY = "👩‍👩‍👧‍👦"
_ZALGO = "".join(letter + "\u0315\u0489\u033a\u0363\u0324" * 6 for letter in "he comes")

_UNICODE = [
    "", " ", "\t", "\n", "\r\n", "\u00a0", "\u200b", "\u2028\u2029", "\ufeff", "\u3000 \u2003", "👍", "👍🏿👍🏻",
    _FAMILY, "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🇺🇳🇫🇷🇺", "❤️‍🔥", "#️⃣", "🧑🏾‍❤️‍💋‍🧑🏻", "\u200d", "\u200d\u200d\u200d", "\ufe0f",
    "\u202eright to left\u202c", "\u2067abc\u2066def\u2069\u2069", "مرحبا بالعالم", "שָׁלוֹם עוֹלָם", "abc שלום def",
    "\u200f\u200e", _ZALGO, "e" + "\u0301" * 500, "\u0301starts with a mark", "é vs e\u0301", "Å Å A\u030a", "ﬁ ﬂ ﬀ",
    "ẞ ß SS ss", "İ i̇ ı I", "각 각", "ΌΔΥΣΣΕΎΣ ὀδυσσεύς ς σ", "аdmin", "раураl", "ɡооɡlе", "𝒂𝖉𝚖𝕚𝔫", "ᴬᴰᴹᴵᴺ",
    "①②③ Ⅷ ½", "田中さんにあげて下さい", "パーティーへ行かないか", "ﾊﾟｰﾃｨｰ", "和製漢語", "사회과학원 어학연구소",
    "ไทยไม่มีช่องว่าง", "ภาษาไทย", "தமிழ் क्षि ক্ষ", "ရန်ကုန်", "𠜎𠜱𠝹𠱓", "𐐷𐑇𐐨", "\U000f0000\U0010fffd",
    "\ue000\uf8ff", "\ufffe\uffff", "\U0001fffe\U0010ffff", "\ufffd", "\u0378", "\U000e0001\U000e0041", "ᚠᛇᚻ᛫ᛒᛦᚦ",
    "⠎⠥⠏", "†∂ƒ©˙∆", "¡™£¢∞§", "ЁЂЃЄ", "٠١٢٣", "₀₁₂ ⁰⁴⁵", "␀␡", "\u00ad\u00ad", "a\u00adb",
    "Z\u0351\u036b\u0343\u036a",
]  # fmt: skip

_CONTROL_CODES = (*range(32), *range(127, 160))
_CONTROLS = [*(f"before{chr(code)}after" for code in _CONTROL_CODES), "\0", "\0\0\0", "\x1b[31mred\x1b[0m"]

_SYNTAX = [
    "undefined", "null", "None", "true", "NaN", "Infinity", "-0", "1e999", "0x0", "1/0", "1,000.00", "'", '"', "''",
    '""', "`", "\\", "\\\\", "\\u0000", "\\ud83d", "%00", "%s%n%x", "{0}", "{{7*7}}", "${jndi:ldap://127.0.0.1/a}",
    "$(touch /tmp/x)", "; ls -la", "' OR '1'='1", "1; DROP TABLE documents--", "'); DELETE FROM contents;--",
    "admin'/*", "x' UNION SELECT * FROM owners--", 'NEAR("a" "b", 5)', "a AND b OR NOT c", "AND", "NOT",
    "body : harbour", "readers : o1", "^first", '"unclosed', "a*", "-minus +plus", "(((", ")))", "{colset} : x",
    "col:val", "rank MATCH 'bm25(10)'", "SELECT highlight(words, 0, '<', '>')", "../../x", "../../../../etc/passwd",
    "..\\..\\windows", "/dev/null", "C:\\con", "file:///etc/passwd", "CON", "aux.txt", "a/b/c", ".", "..", "~", "-rf",
    "--help", "*", "?", "|", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "]]>", "<!--",
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    "&lt;&amp;&#0;&#x110000;", "</textarea>", "javascript:alert(1)", "data:text/html,<b>", "http://a/%%30%30",
    "http://[::1]:80:80", "\u2044 \u2215 ∕", "( ͡° ͜ʖ ͡°)", "¯\\_(ツ)_/¯", '{"query": "x"}', "[[[[", '{"a":' * 50,
    "a=1&b=2", "Content-Length: 0\r\n\r\n", "GET / HTTP/1.1", "\r\nSet-Cookie: a=b", "0:0", "a:0", "doc:1:2", "o1",
    "own1 all media_text",
]  # fmt: skip

_MARKDOWN = [
    "\tfoo\tbaz\t\tbim", "  - foo\n\n\tbar", "- `one\n- two`", "\\!\\\"\\#\\$\\%\\&", "# hello<?php echo '1'; ?>",
    "***\n---\n___", "####### foo", "Foo *bar*\n====", "```\n<\n >\n```",
    "~~~~    ruby startline=3 $%@#$\ndef\n~~~~~~~", "<del>\n\n*foo*\n\n</del>", "[foo]: /url 'the title'\n\n[foo]",
    "[foo]: <>\n\n[foo](<b)c>)", "> > > foo\nbar", "1234567890. not ok", "&nbsp; &copy &ngE; &#1234;",
    "`` foo ` bar ``", "*foo**bar**baz*", "**foo*bar**baz*", "[link](foo(and(bar)))", "![[[foo](uri1)](uri2)](uri3)",
    "<http://example.com/\\[\\>", "<a h*#ref=\"hi\">", "foo  \nbaz\\\nbar", "| a | b |\n|---|---|\n| \\| | `|` |",
]  # fmt: skip

_LONG = [
    "x" * 10_000, "long line " * 500, "\U0001f600" * 256, "a\n" * 1_000, "🏳️‍🌈" * 70, "\u0301" * 3_000, "()" * 1_000,
]  # fmt: skip

HOSTILE_TEXTS = tuple(dict.fromkeys([*_UNICODE, *_CONTROLS, *_SYNTAX, *_MARKDOWN, *_LONG]))
