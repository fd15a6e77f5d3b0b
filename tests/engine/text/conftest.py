"""Small tokenizers of the two families that models use, trained on the spot.

Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece BPE with byte fallback (Llama 2, Mistral),
written as model folders and loaded the way a server loads them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Backend

from engine.text import Tokenizer

CORPUS = [
    "We live in Oslo and they live in Paris, the two of them.",
    "Žluťoučký kůň 🙂 日本 says hello world to the user.",
    "x   y  z and one two three four\n\nUser: hello\nAssistant: hello",
]
SPECIAL_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

MakeModelDir = Callable[..., Path]


def byte_level_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return with_bos(backend)


def sentencepiece_backend() -> Backend:
    """As the conversion of a Llama 2 tokenizer: blanks are "▁", unknown characters are bytes."""
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, limit_alphabet=40, show_progress=False)
    trained.train_from_iterator(CORPUS[::2], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = [*SPECIAL_TOKENS.values(), *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += sorted(model["vocab"], key=model["vocab"].__getitem__)
    backend = Backend(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS.values()))
    return with_bos(backend)


def metaspace_backend() -> Backend:
    """The other form of a SentencePiece tokenizer: the blank is the pre-tokenizer's business."""
    backend = sentencepiece_backend()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


def with_bos(backend: Backend) -> Backend:
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


FAMILIES = {
    "byte_level": byte_level_backend,
    "sentencepiece": sentencepiece_backend,
    "metaspace": metaspace_backend,
}


@pytest.fixture(scope="session")
def make_model_dir(tmp_path_factory: pytest.TempPathFactory) -> MakeModelDir:
    """Writes a model folder: `tokenizer.json` and one file per keyword (a name without suffix)."""

    def make(backend: Backend | None, *, template: str | None = None, **files: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        if backend is not None:
            backend.save(str(folder / "tokenizer.json"))
        if template is not None:
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        for name, content in {"tokenizer_config": SPECIAL_TOKENS, **files}.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def new_backend() -> Callable[[str], Backend]:
    """A fresh backend of a family: byte_level, sentencepiece or metaspace."""
    return lambda family: FAMILIES[family]()


@pytest.fixture(scope="session")
def family_dirs(make_model_dir: MakeModelDir) -> dict[str, Path]:
    return {family: make_model_dir(build()) for family, build in FAMILIES.items()}


@pytest.fixture(scope="session")
def byte_level(family_dirs: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(family_dirs["byte_level"])


@pytest.fixture(scope="session")
def sentencepiece(family_dirs: dict[str, Path]) -> Tokenizer:
    return Tokenizer.load(family_dirs["sentencepiece"])


@pytest.fixture(params=list(FAMILIES), scope="session")
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tokenizer(family: str, family_dirs: dict[str, Path]) -> Tokenizer:
    """Each family in turn."""
    return Tokenizer.load(family_dirs[family])


@pytest.fixture(scope="session")
def library(family: str, family_dirs: dict[str, Path]) -> Backend:
    """The `tokenizers` library's own view of `tokenizer`."""
    return Backend.from_file(str(family_dirs[family] / "tokenizer.json"))


@pytest.fixture(scope="session")
def scripted(make_model_dir: MakeModelDir) -> Callable[..., tuple[Tokenizer, list[int]]]:
    """A tokenizer in which each of the given texts is one token, and the ids of these tokens."""

    def build(*texts: str) -> tuple[Tokenizer, list[int]]:
        backend = byte_level_backend()
        backend.add_tokens([AddedToken(text, normalized=False) for text in texts])
        tokenizer = Tokenizer.load(make_model_dir(backend))
        return tokenizer, [backend.token_to_id(text) for text in texts]

    return build
