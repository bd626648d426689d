"""How text is cut before merging, by `tokenizer.ggml.pre` of a GGUF file: each as in the model's own tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

# Pieces that several of the patterns share.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
# Words that begin with capitals, at a change of case.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _class_of(ranges: str) -> str:
    """Hexadecimal code points and ranges of them -> what stands for them inside a character class."""
    return "".join("-".join(f"\\x{{{code_point}}}" for code_point in one.split("-")) for one in ranges.split())


_GPT4 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}",
)
# Letters that have a case, as of the Unicode of DeepSeek-LLM's time, by code point: some would change when normalized.
_CASED_LETTERS = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C
    38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
    1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
    1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
    2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B
    2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
    FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
    1E900-1E943
"""
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_class_of(_CASED_LETTERS)}]+",
    r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-\x{D7FF}]+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\x{D7FF}]+")


def _cased(*, contractions: str = "", not_in: str = "") -> str:
    """Words that end where lower case does; `not_in` is a class of letters that are not theirs."""
    but = rf"&&[^{not_in}]" if not_in else ""
    upper, lower = _UPPER[:-1] + but + "]", _LOWER[:-1] + but + "]"
    start = r"[^\r\n\p{L}\p{N}]?"
    return rf"{start}{upper}*{lower}+{contractions}|{start}{upper}+{lower}*{contractions}"


_GPT_4O = rf"{_cased(contractions=_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
_TEKKEN = rf"{_cased()}|\p{{N}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
_KIMI_WORDS = _cased(contractions=_CONTRACTIONS + "?", not_in=r"\p{Han}")
_KIMI_K2 = rf"[\p{{Han}}]+|{_KIMI_WORDS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"


@dataclass(frozen=True)
class PreTokenizer:
    """What happens to text before merges.

    Attributes:
        patterns: one after the other, each cuts what those before it left whole, at its matches; none means GPT-2's.
        digits: each digit is a piece; before everything ("first"), after it ("last"), or not ("").
        nfc: Unicode's normal form C first.
        ignore_merges: pieces that the vocabulary has as a whole are never merged.
        adds_bos: where the header is silent.
    """

    patterns: tuple[str, ...] = ()
    digits: str = ""
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def normalizer(self) -> Any:
        return normalizers.NFC() if self.nfc else None

    def build(self) -> Any:
        cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        if self.digits:
            digits = pre_tokenizers.Digits(individual_digits=True)
            cuts.insert(0 if self.digits == "first" else len(cuts), digits)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.patterns)
        return pre_tokenizers.Sequence([*cuts, byte_level])


_GPT2 = PreTokenizer()
_DIGITS_FIRST = PreTokenizer(digits="first")
_LLAMA3 = PreTokenizer((_GPT4,), ignore_merges=True, adds_bos=True)
_GLM4 = PreTokenizer((_GPT4,))
_O200K = PreTokenizer((_GPT_4O,), ignore_merges=True)
_QWEN = PreTokenizer((_QWEN2,), nfc=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "gpt-2": _GPT2,
        "gpt2": _GPT2,
        "smollm": _DIGITS_FIRST,
        "starcoder": _DIGITS_FIRST,
        "refact": _DIGITS_FIRST,
        "command-r": _DIGITS_FIRST,
        "llama-bpe": _LLAMA3,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "qwen2": _QWEN,
        "deepseek-r1-qwen": _QWEN,
        "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
        "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM, digits="last"),
        "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER, digits="last"),
        "gpt-4o": _O200K,
        "minimax-m2": PreTokenizer((_GPT_4O,)),
        "glm4": _GLM4,
        "chatglm-bpe": _GLM4,
        "kimi-k2": PreTokenizer((_KIMI_K2,)),
        "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    }
)
