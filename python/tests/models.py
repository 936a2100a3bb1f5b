"""Small models for tests, each with a batch of samples: what `annulus.export` is called with.

`python tests/models.py NAME FOLDER [SIZE=N ...]` exports one of them into a folder of its name. Those that need a library that
is not installed raise ImportError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import annulus  # noqa: E402


@dataclass
class Case:
    """A model with samples and the arguments of `export`."""

    model: nn.Module
    samples: Any
    loss: Any = "cross_entropy"
    #: Whether the reference evaluator is fast enough for it. It loops over the groups of convolutions.
    evaluated: bool = True

    def export(self, folder: Path) -> Path:
        return annulus.export(self.model, dataset=self.samples, loss=self.loss, to=folder)


#: Makers of models, by name. The first 14 are those of the project's Rust tests.
CASES: dict[str, Callable[..., Case]] = {}


def case(make: Callable[..., Case]) -> Callable[..., Case]:
    CASES[make.__name__] = make
    return make


def make(name: str, **sizes: int) -> Case:
    """A model of this name, the same each time. Some can be made larger."""
    torch.manual_seed(0)
    return CASES[name](**sizes)


def classes(count: int, samples: int, *more: int) -> torch.Tensor:
    return torch.randint(0, count, (samples, *more))


@case
def mlp() -> Case:
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))
    return Case(model, (torch.randn(8, 20), classes(10, 8)))


@case
def cnn() -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return Case(model, (torch.randn(4, 1, 28, 28), classes(10, 4)))


class Recurrent(nn.Module):
    """Embedding, two recurrent layers, and logits for each token or for the last state."""

    def __init__(self, kind: type[nn.RNNBase], last: bool = False, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = kind(16, 24, num_layers=2, batch_first=True, **options)
        self.head = nn.Linear(24 * (2 if options.get("bidirectional") else 1), 50)
        self.last = last

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, final = self.layers(self.embedding(ids))
        if self.last:
            final = final[0] if isinstance(final, tuple) else final
            return self.head(torch.cat([final[-2], final[-1]], dim=1))
        return self.head(states)


@case
def lstm() -> Case:
    return Case(Recurrent(nn.LSTM), (classes(50, 4, 12), classes(50, 4, 12)))


@case
def gru() -> Case:
    return Case(Recurrent(nn.GRU), (classes(50, 4, 12), classes(50, 4, 12)))


@case
def vit() -> Case:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=32, patch_size=8, num_classes=10, embed_dim=48, depth=2, num_heads=3, drop_rate=0.1, drop_path_rate=0.2
    )
    return Case(model, (torch.randn(4, 3, 32, 32), classes(10, 4)))


def text(width: int = 16, words: int = 100, samples: int = 4) -> dict[str, torch.Tensor]:
    """Token ids, of which the last few of the first sample are padding."""
    mask = torch.ones(samples, width, dtype=torch.long)
    mask[0, -3:] = 0
    return {"input_ids": classes(words, samples, width), "attention_mask": mask}


def causal(width: int = 16, words: int = 100, samples: int = 4) -> dict[str, torch.Tensor]:
    ids = classes(words, samples, width)
    return {"input_ids": ids, "labels": ids.clone()}


@case
def bert(width: int = 48, words: int = 100, tokens: int = 16, samples: int = 4) -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=max(32, tokens),
        num_labels=3,
    )
    batch = {**text(tokens, words, samples), "labels": classes(3, samples)}
    return Case(BertForSequenceClassification(config), batch, None)


@case
def distilbert() -> Case:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=100, dim=48, n_layers=2, n_heads=4, hidden_dim=96, max_position_embeddings=32, num_labels=3
    )
    return Case(DistilBertForSequenceClassification(config), {**text(), "labels": classes(3, 4)}, None)


@case
def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Case(GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=48, n_layer=2, n_head=4)), causal(), None)


LLAMA = dict(
    vocab_size=100,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)


@case
def llama(width: int = 48, words: int = 100, tokens: int = 16, samples: int = 4) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "vocab_size": words}
    config = LlamaConfig(**{**LLAMA, **sizes}, tie_word_embeddings=True)
    config.max_position_embeddings = max(32, tokens)
    return Case(LlamaForCausalLM(config), causal(tokens, words, samples), None)


@case
def qwen3() -> Case:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Case(Qwen3ForCausalLM(Qwen3Config(**LLAMA, head_dim=12)), causal(), None)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 8, 3, padding=1), Block(8, 16)
        self.smaller, self.middle = nn.Conv2d(16, 16, 3, stride=2, padding=1), Block(16, 16)
        self.larger, self.up = nn.ConvTranspose2d(16, 16, 2, stride=2), Block(32, 8)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.down(self.first(x))
        low = self.middle(self.smaller(side))
        low = F.interpolate(low, scale_factor=2, mode="nearest") + self.larger(low)
        return self.last(self.up(torch.cat([side, low], 1)))


@case
def unet() -> Case:
    return Case(UNet(), (torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)), "mse")


class Tabular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(7, 4), nn.Embedding(5, 3)])
        self.norm = nn.BatchNorm1d(10)
        self.layers = nn.Sequential(nn.Linear(17, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, numbers: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        looked_up = [table(kinds[:, at]) for at, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([self.norm(numbers), *looked_up], 1))


@case
def tabular() -> Case:
    kinds = torch.stack([classes(7, 6), classes(5, 6)], 1)
    return Case(Tabular(), (torch.randn(6, 10), kinds, classes(2, 6)), "bce")


@case
def tfenc() -> Case:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    return Case(model, (torch.randn(2, 6, 32), torch.randn(2, 6, 32)), "mse")


@case
def lora() -> Case:
    from peft import LoraConfig, get_peft_model

    base = make("llama")
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return Case(get_peft_model(base.model, settings), base.samples, None)


# Architectures of other libraries. No rule of the exporter names one of them.


def torchvision_case(name: str, size: int, **options: Any) -> Case:
    from torchvision import models

    samples = (torch.randn(2, 3, size, size), classes(10, 2))
    return Case(models.get_model(name, num_classes=10, **options), samples, evaluated=name == "resnet18")


@case
def resnet18() -> Case:
    return torchvision_case("resnet18", 64)


@case
def mobilenet_v3() -> Case:
    return torchvision_case("mobilenet_v3_small", 64)


@case
def efficientnet() -> Case:
    return torchvision_case("efficientnet_b0", 64)


@case
def convnext() -> Case:
    from timm.models.convnext import ConvNeXt

    model = ConvNeXt(num_classes=10, depths=(1, 1, 1, 1), dims=(16, 24, 32, 48), drop_path_rate=0.2)
    return Case(model, (torch.randn(2, 3, 32, 32), classes(10, 2)))


@case
def vgg() -> Case:
    from torchvision.models.vgg import VGG, make_layers

    model = VGG(make_layers([8, "M", 16, "M"]), num_classes=10, dropout=0.1)
    model.classifier = nn.Sequential(nn.Linear(16 * 49, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10))
    return Case(model, (torch.randn(2, 3, 40, 40), classes(10, 2)))


@case
def densenet() -> Case:
    from torchvision.models import DenseNet

    model = DenseNet(8, (2, 2), 16, bn_size=2, num_classes=10)
    return Case(model, (torch.randn(4, 3, 64, 64), classes(10, 4)))


@case
def swin() -> Case:
    from torchvision.models import SwinTransformer

    model = SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.2, num_classes=10)
    return Case(model, (torch.randn(4, 3, 60, 60), classes(10, 4)))


@case
def mixer() -> Case:
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=32)
    return Case(model, (torch.randn(4, 3, 32, 32), classes(10, 4)))


@case
def hf_swin() -> Case:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=3)
    return Case(SwinForImageClassification(config), {"pixel_values": torch.randn(4, 3, 32, 32), "labels": classes(3, 4)}, None)


@case
def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0
    )
    return Case(T5ForConditionalGeneration(config), {**text(12), "labels": 1 + classes(99, 4, 8)}, None)


@case
def roberta() -> Case:
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=100,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
    )
    return Case(RobertaForMaskedLM(config), {**text(), "labels": classes(100, 4, 16)}, None)


@case
def mistral() -> Case:
    from transformers import MistralConfig, MistralForCausalLM

    return Case(MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=8)), causal(), None)


@case
def mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    return Case(MixtralForCausalLM(MixtralConfig(**LLAMA, num_local_experts=4)), causal(), None, evaluated=False)


@case
def gpt_oss() -> Case:
    from transformers import GptOssConfig, GptOssForCausalLM

    # Its experts have biases, and gates of its own.
    return Case(GptOssForCausalLM(GptOssConfig(**LLAMA, head_dim=12, num_local_experts=4)), causal(), None, evaluated=False)


@case
def gemma() -> Case:
    from transformers import GemmaConfig, GemmaForCausalLM

    return Case(GemmaForCausalLM(GemmaConfig(**LLAMA, head_dim=12)), causal(), None)


@case
def phi() -> Case:
    from transformers import PhiConfig, PhiForCausalLM

    return Case(PhiForCausalLM(PhiConfig(**{**LLAMA, "num_key_value_heads": 4})), causal(), None)


@case
def neox() -> Case:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    return Case(GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)), causal(), None)


@case
def bidirectional_lstm() -> Case:
    return Case(Recurrent(nn.LSTM, last=True, bidirectional=True, dropout=0.3), (classes(50, 4, 12), classes(50, 4)))


@case
def bidirectional_gru() -> Case:
    return Case(Recurrent(nn.GRU, bidirectional=True, bias=False), (classes(50, 4, 12), classes(50, 4, 12)))


@case
def whole_transformer() -> Case:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(40, 32), nn.Linear(32, 40)
            self.layers = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

        def forward(self, source: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(given.shape[1])
            return self.head(self.layers(self.embedding(source), self.embedding(given), tgt_mask=mask, tgt_is_causal=True))

    return Case(Translator(), (classes(40, 4, 7), classes(40, 4, 5), classes(40, 4, 5)))


class NanoBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        query, key, value = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).reshape(batch, time, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """The architecture of Annulus's stock task `gpt`: no biases, and one table for embedding and logits."""

    def __init__(self, layers: int = 2, heads: int = 2, width: int = 16, context: int = 16, vocabulary: int = 64) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(NanoBlock(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@case
def nanogpt() -> Case:
    return Case(NanoGPT(), (classes(64, 8, 16), classes(64, 8, 16)))


if __name__ == "__main__":
    given = {name: int(value) for name, value in (pair.split("=") for pair in sys.argv[3:])}
    print(make(sys.argv[1], **given).export(Path(sys.argv[2]) / sys.argv[1]))
