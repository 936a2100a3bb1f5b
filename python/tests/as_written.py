"""Models and losses as people write them, each of which is to train. No rule of the exporter knows one of them.

`python tests/as_written.py [NAME ...]` tells how many are exported, are computed by the program, and agree with PyTorch.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from models import Case, causal, classes, text
from safetensors import safe_open
from torch import nn

import annulus
from annulus import objective, samples

CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def make(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


class Of(nn.Module):
    """Layers by name, and a function of them and the inputs."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.body = forward

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.body(self.layers, *inputs)


def table(width: int = 6, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, width)


def pictures(size: int = 8, channels: int = 3, count: int = 4) -> torch.Tensor:
    return torch.randn(count, channels, size, size)


def small_net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, outputs))


# Language models by hand.


class Head(nn.Module):
    """A head as the well-known tutorial writes it."""

    def __init__(self, width: int = 16, size: int = 8, block: int = 12, kind: str = "bias") -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(block, block)))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, T, _ = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ self.value(x)


class TutorialGPT(nn.Module):
    def __init__(self, words: int = 30, width: int = 16, block: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(block, width)
        self.heads, self.proj = nn.ModuleList(Head(width) for _ in range(2)), nn.Linear(16, width)
        self.ffwd = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.ln1, self.ln2, self.ln_f = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, words)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        _, T = idx.shape
        x = self.tokens(idx) + self.positions(torch.arange(T, device=idx.device))
        x = x + self.proj(torch.cat([head(self.ln1(x)) for head in self.heads], dim=-1))
        x = x + self.ffwd(self.ln2(x))
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        loss = F.cross_entropy(logits.view(B * T, C), targets.view(B * T))
        return logits, loss


@case
def tutorial_gpt() -> Case:
    ids = classes(30, 4, 12)
    return Case(TutorialGPT(), {"idx": ids, "targets": ids.roll(-1, 1)}, None)


@case
def tutorial_gpt_by_position() -> Case:
    return Case(TutorialGPT(), (classes(30, 4, 12), classes(30, 4, 12)), None)


class MinGPTAttention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2, block: int = 64) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.n_head, self.n_embd = nn.Linear(width, 3 * width), nn.Linear(width, width), heads, width
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k, q, v = (part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in (k, q, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


@case
def mingpt() -> Case:
    model = nn.Sequential(nn.Embedding(30, 16), MinGPTAttention(), nn.Linear(16, 30))
    return Case(model, (classes(30, 4, 12), classes(30, 4, 12)))


@case
def attention_by_einsum() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (m[name](x).view(x.shape[0], x.shape[1], 2, 8) for name in "qkv")
        weights = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
        return m["o"](torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))

    layers = {name: nn.Linear(16, 16) for name in "qkvo"}
    return Case(Of(forward, **layers), (torch.randn(4, 5, 16), torch.randn(4, 5, 16)), "mse")


@case
def attention_with_alibi_and_triu_mask() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        scores = m["q"](x) @ m["k"](x).mT
        mask = torch.triu(torch.full((T, T), float("-inf")), diagonal=1)
        distance = (torch.arange(T)[None] - torch.arange(T)[:, None]).clamp(max=0).float()
        return torch.softmax(scores + mask + 0.1 * distance, -1) @ x

    return Case(Of(forward, q=nn.Linear(8, 8), k=nn.Linear(8, 8)), (torch.randn(4, 5, 8), torch.randn(4, 5, 8)), "mse")


@case
def multihead_attention_with_padding() -> Case:
    def forward(m: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        padding = torch.arange(x.shape[1])[None] >= lengths[:, None]
        made, _ = m["a"](x, x, x, key_padding_mask=padding, need_weights=False)
        return made.masked_fill(padding[..., None], 0).sum(1) / lengths[:, None]

    samples_ = torch.randn(4, 5, 8), torch.tensor([5, 3, 4, 1]), torch.randn(4, 8)
    return Case(Of(forward, a=nn.MultiheadAttention(8, 2, batch_first=True)), samples_, "mse")


@case
def seq2seq_of_the_tutorial() -> Case:
    def forward(m: Any, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        T = target.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        made = m["t"](m["e"](source), m["e"](target), tgt_mask=mask, src_key_padding_mask=source == 0)
        return m["h"](made)

    layers = dict(e=nn.Embedding(20, 16), t=nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True), h=nn.Linear(16, 20))
    return Case(Of(forward, **layers), (1 + classes(19, 4, 7), classes(20, 4, 5), classes(20, 4, 5)))


# Recurrent layers.


def last_of(kind: str, **options: Any) -> Case:
    layer = getattr(nn, kind)(6, 10, batch_first=True, **options)
    width = 10 * (2 if options.get("bidirectional") else 1)
    model = Of(lambda m, x: m["h"](m["r"](x)[0][:, -1]), r=layer, h=nn.Linear(width, 3))
    return Case(model, (torch.randn(4, 7, 6), classes(3, 4)))


@case
def rnn_tanh() -> Case:
    return last_of("RNN")


@case
def rnn_relu_both_ways() -> Case:
    return last_of("RNN", nonlinearity="relu", bidirectional=True, num_layers=2)


@case
def lstm_with_a_zero_state_by_hand() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        h0 = torch.zeros(2, x.size(0), 10)
        c0 = torch.zeros(2, x.size(0), 10)
        made, _ = m["r"](x, (h0, c0))
        return m["h"](made[:, -1, :])

    layers = dict(r=nn.LSTM(6, 10, 2, batch_first=True), h=nn.Linear(10, 3))
    return Case(Of(forward, **layers), (torch.randn(4, 7, 6), classes(3, 4)))


@case
def lstm_last_cell() -> Case:
    model = Of(lambda m, x: m["h"](m["r"](x)[1][1][-1]), r=nn.LSTM(6, 10, batch_first=True), h=nn.Linear(10, 3))
    return Case(model, (torch.randn(4, 7, 6), classes(3, 4)))


@case
def lstm_with_projections() -> Case:
    return Case(
        Of(lambda m, x: m["h"](m["r"](x)[0][:, -1]), r=nn.LSTM(6, 10, batch_first=True, proj_size=5), h=nn.Linear(5, 3)),
        (torch.randn(4, 7, 6), classes(3, 4)),
    )


@case
def gru_decoder_of_an_encoder() -> Case:
    def forward(m: Any, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = m["encoder"](m["e"](source))
        made, _ = m["decoder"](m["e"](target), state)
        return m["h"](made)

    encoder, decoder = nn.GRU(8, 12, batch_first=True), nn.GRU(8, 12, batch_first=True)
    layers = dict(e=nn.Embedding(20, 8), encoder=encoder, decoder=decoder, h=nn.Linear(12, 20))
    return Case(Of(forward, **layers), (classes(20, 4, 6), classes(20, 4, 5), classes(20, 4, 5)))


@case
def lstm_decoder_of_an_encoder() -> Case:
    def forward(m: Any, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = m["encoder"](m["e"](source))
        return m["h"](m["decoder"](m["e"](target), state)[0])

    encoder, decoder = nn.LSTM(8, 12, batch_first=True), nn.LSTM(8, 12, batch_first=True)
    layers = dict(e=nn.Embedding(20, 8), encoder=encoder, decoder=decoder, h=nn.Linear(12, 20))
    return Case(Of(forward, **layers), (classes(20, 4, 6), classes(20, 4, 5), classes(20, 4, 5)))


def by_cells(kind: str) -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        state: Any = torch.zeros(x.shape[0], 10)
        if kind == "LSTMCell":
            state = (state, torch.zeros(x.shape[0], 10))
        for step in range(x.shape[1]):
            state = m["c"](x[:, step], state)
        return m["h"](state[0] if kind == "LSTMCell" else state)

    model = Of(forward, c=getattr(nn, kind)(6, 10), h=nn.Linear(10, 3))
    return Case(model, (torch.randn(4, 5, 6), classes(3, 4)))


@case
def lstm_cell() -> Case:
    return by_cells("LSTMCell")


@case
def gru_cell() -> Case:
    return by_cells("GRUCell")


@case
def rnn_cell() -> Case:
    return by_cells("RNNCell")


# Noise.


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mu, self.logvar = nn.Linear(6, 12), nn.Linear(12, 4), nn.Linear(12, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 6), nn.Sigmoid())

    def reparameterize(self, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.relu(self.encoder(x))
        mu, logvar = self.mu(h), self.logvar(h)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


@case
def vae() -> Case:
    def loss(outputs: Any, x: torch.Tensor) -> torch.Tensor:
        made, mu, logvar = outputs
        bce = F.binary_cross_entropy(made, x, reduction="none").sum(1).mean()
        return bce - 0.5 * torch.mean(torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1))

    x = torch.rand(8, 6)
    return Case(VAE(), (x, x), loss)


@case
def ddpm() -> Case:
    class Diffusion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6))
            self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            t = torch.randint(0, 100, (x.shape[0],), device=x.device)
            noise = torch.randn_like(x)
            kept = self.kept[t][:, None]
            noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
            return F.mse_loss(self.net(torch.cat([noisy, t[:, None].float() / 100], 1)), noise)

    return Case(Diffusion(), {"x": table()}, None)


@case
def noise_layer() -> Case:
    model = Of(lambda m, x: m["n"](x + 0.1 * torch.randn(x.shape, device=x.device)), n=small_net())
    return Case(model, (table(), classes(3, 8)))


@case
def gumbel_softmax() -> Case:
    model = Of(lambda m, x: m["h"](F.gumbel_softmax(m["n"](x), tau=0.7)), n=small_net(4), h=nn.Linear(4, 3))
    return Case(model, (table(), classes(3, 8)))


@case
def drop_path_by_hand() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        keep = (torch.rand(x.shape[0], 1) < 0.8).float() / 0.8
        return m["h"](x + keep * m["n"](x))

    return Case(Of(forward, n=nn.Linear(6, 6), h=nn.Linear(6, 3)), (table(), classes(3, 8)))


@case
def masked_autoencoder() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(torch.rand(x.shape[0], x.shape[1]), dim=1)
        kept = order[:, :3]
        seen = torch.gather(x, 1, kept[..., None].expand(-1, -1, x.shape[2]))
        guess = m["n"](seen).mean(1, keepdim=True).expand(-1, x.shape[1], -1)
        mask = torch.ones(x.shape[:2]).scatter(1, kept, 0.0)
        return (((guess - x) ** 2).mean(-1) * mask).sum() / mask.sum()

    return Case(Of(lambda m, x: {"loss": forward(m, x)}, n=nn.Linear(6, 6)), (torch.randn(4, 8, 6),), None)


# Losses.


def with_loss(loss: Any, targets: torch.Tensor, outputs: int = 3) -> Case:
    return Case(small_net(outputs), (table(), targets), loss)


@case
def focal() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        ce = F.cross_entropy(o, t, reduction="none")
        return ((1 - torch.exp(-ce)) ** 2 * ce).mean()

    return with_loss(loss, classes(3, 8))


@case
def cross_entropy_summed() -> Case:
    return with_loss(lambda o, t: F.cross_entropy(o, t, reduction="sum") / t.shape[0], classes(3, 8))


@case
def masked_tokens() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        each = F.cross_entropy(o.transpose(1, 2), t, reduction="none")
        mask = (t != 0).float()
        return (each * mask).sum() / mask.sum()

    return Case(nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9)), (classes(9, 4, 6), classes(9, 4, 6)), loss)


@case
def class_weights_and_smoothing() -> Case:
    return with_loss(nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1), classes(3, 8))


@case
def bce_of_probabilities() -> Case:
    net = nn.Sequential(small_net(1), nn.Sigmoid())
    return Case(net, (table(), classes(2, 8, 1).float()), nn.BCELoss())


@case
def bce_with_weights() -> Case:
    return with_loss(nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, 2.0, 0.5])), classes(2, 8, 3).float())


@case
def kl_div() -> Case:
    target = torch.softmax(torch.randn(8, 3), 1)
    return with_loss(lambda o, t: F.kl_div(F.log_softmax(o, 1), t, reduction="batchmean"), target)


@case
def distillation() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.kl_div(F.log_softmax(o / 2, -1), F.log_softmax(t / 2, -1), log_target=True, reduction="batchmean") * 4

    return with_loss(loss, torch.randn(8, 3))


@case
def triplet() -> Case:
    def forward(m: Any, a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return F.triplet_margin_loss(m["n"](a), m["n"](p), m["n"](n))

    model = Of(lambda m, *x: {"loss": forward(m, *x)}, n=small_net())
    return Case(model, (table(), table(), table()), None)


@case
def cosine_embedding() -> Case:
    def forward(m: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return m["n"](a), m["n"](b)

    loss = nn.CosineEmbeddingLoss(margin=0.1)
    same = torch.tensor([1.0, -1.0] * 4)
    return Case(Of(forward, n=small_net()), (table(), table(), same), lambda o, t: loss(o[0], o[1], t))


@case
def cosine_similarity() -> Case:
    return with_loss(lambda o, t: 1 - F.cosine_similarity(o, t).mean(), torch.randn(8, 3))


@case
def gaussian_nll() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        mean, log_variance = o.chunk(2, -1)
        return (0.5 * (log_variance + (t - mean) ** 2 / log_variance.exp())).mean()

    return with_loss(loss, torch.randn(8, 1), 2)


@case
def poisson_nll() -> Case:
    return with_loss(nn.PoissonNLLLoss(), torch.poisson(torch.ones(8, 3)))


@case
def margin_losses() -> Case:
    return with_loss(lambda o, t: F.multi_margin_loss(o, t) + 0.1 * F.cross_entropy(o, t), classes(3, 8))


@case
def multilabel_soft_margin() -> Case:
    return with_loss(nn.MultiLabelSoftMarginLoss(), classes(2, 8, 3).float())


@case
def margin_ranking_and_hinge() -> Case:
    sign = torch.tensor([1.0, -1.0] * 4)

    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.margin_ranking_loss(o[:, 0], o[:, 1], t, margin=0.2) + F.soft_margin_loss(o[:, 2], t)

    return with_loss(loss, sign)


@case
def dice() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        hot = F.one_hot(t, 3).permute(0, 3, 1, 2).float()
        p = o.softmax(1)
        both = (p * hot).sum((2, 3))
        return 1 - ((2 * both + 1) / (p.sum((2, 3)) + hot.sum((2, 3)) + 1)).mean()

    return Case(nn.Conv2d(3, 3, 3, padding=1), (pictures(), classes(3, 4, 8, 8)), loss)


@case
def mixup_in_the_loss() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.sum(-t * F.log_softmax(o, -1), -1).mean()

    return with_loss(loss, torch.softmax(torch.randn(8, 3), 1))


@case
def quantile_and_where() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        error = t - o
        return torch.where(error >= 0, 0.9 * error, -0.1 * error).mean()

    return with_loss(loss, torch.randn(8, 3))


@case
def quantile_by_max() -> Case:
    return with_loss(lambda o, t: torch.max(0.9 * (t - o), -0.1 * (t - o)).mean(), torch.randn(8, 3))


@case
def log_cosh_and_charbonnier() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.cosh(o - t)).mean() + torch.sqrt((o - t) ** 2 + 1e-6).mean()

    return with_loss(loss, torch.randn(8, 3))


@case
def label_smoothing_by_scatter() -> Case:
    def loss(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            soft = torch.full_like(o, 0.05)
            soft.scatter_(1, t.unsqueeze(1), 0.9)
        return torch.mean(torch.sum(-soft * o.log_softmax(-1), dim=-1))

    return with_loss(loss, classes(3, 8))


@case
def arcface() -> Case:
    class ArcFace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.weight = small_net(5), nn.Parameter(torch.randn(4, 5))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            cosine = F.linear(F.normalize(self.net(x)), F.normalize(self.weight))
            sine = torch.sqrt((1.0 - cosine**2).clamp(1e-6, 1))
            phi = cosine * math.cos(0.5) - sine * math.sin(0.5)
            phi = torch.where(cosine > math.cos(math.pi - 0.5), phi, cosine - 0.2)
            hot = torch.zeros_like(cosine)
            hot.scatter_(1, labels.view(-1, 1).long(), 1)
            return F.cross_entropy(8 * (hot * phi + (1 - hot) * cosine), labels)

    return Case(ArcFace(), {"x": table(), "labels": classes(4, 8)}, None)


# Choosing, sorting, adding by index.


@case
def max_over_time() -> Case:
    model = Of(lambda m, x: m["h"](m["c"](x).max(dim=2)[0]), c=nn.Conv1d(4, 8, 3), h=nn.Linear(8, 3))
    return Case(model, (torch.randn(4, 4, 9), classes(3, 4)))


@case
def amax_and_logsumexp() -> Case:
    model = Of(lambda m, x: torch.stack([m["n"](x).amax(1), m["n"](x).logsumexp(1)], 1), n=small_net(5))
    return Case(model, (table(), classes(2, 8)))


@case
def pointnet() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m["h"](torch.max(m["n"](x.transpose(2, 1)), 2, keepdim=True)[0].view(-1, 16))

    net = nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1))
    return Case(Of(forward, n=net, h=nn.Linear(16, 3)), (torch.randn(4, 10, 3), classes(3, 4)))


@case
def mixture_of_all_experts() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        weights = m["gate"](x).softmax(-1)
        made = torch.stack([m[f"e{n}"](x) for n in range(4)], 1)
        return torch.einsum("be,bec->bc", weights, made)

    layers = {f"e{n}": nn.Linear(6, 3) for n in range(4)}
    return Case(Of(forward, gate=nn.Linear(6, 4), **layers), (table(), classes(3, 8)))


@case
def mixture_of_the_top_two_experts() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        values, places = m["gate"](x).topk(2, dim=-1)
        gates = torch.zeros(x.shape[0], 4).scatter(1, places, values.softmax(-1))
        made = torch.stack([m[f"e{n}"](x) for n in range(4)], 1)
        return (gates.unsqueeze(-1) * made).sum(1)

    layers = {f"e{n}": nn.Linear(6, 3) for n in range(4)}
    return Case(Of(forward, gate=nn.Linear(6, 4), **layers), (table(), classes(3, 8)))


@case
def switch_transformer_with_balance() -> Case:
    def forward(m: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        chance = m["gate"](x).softmax(-1)
        best, place = chance.max(-1)
        mask = F.one_hot(place, 4).float()
        made = torch.stack([m[f"e{n}"](x) for n in range(4)], 1)
        y = best.unsqueeze(-1) * (made * mask.unsqueeze(-1)).sum(1)
        return F.cross_entropy(y, target) + 0.01 * 4 * (mask * chance).sum(-1).mean()

    layers = {f"e{n}": nn.Linear(6, 3) for n in range(4)}
    model = Of(lambda m, x, t: {"loss": forward(m, x, t)}, gate=nn.Linear(6, 4), **layers)
    return Case(model, (table(), classes(3, 8)), None)


def graph_of(forward: Callable[..., Any], **layers: nn.Module) -> Case:
    nodes, edges = torch.randn(4, 5, 6), classes(5, 4, 7, 2)
    return Case(Of(forward, **layers), (nodes, edges, classes(3, 4)))


@case
def messages_by_scatter_add() -> Case:
    def forward(m: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source = edges[..., 0, None].expand(-1, -1, 6)
        target = edges[..., 1, None].expand(-1, -1, 8)
        sent = m["message"](torch.gather(x, 1, source)).relu()
        got = torch.zeros(x.shape[0], x.shape[1], 8).scatter_add(1, target, sent)
        return m["h"](got.mean(1))

    return graph_of(forward, message=nn.Linear(6, 8), h=nn.Linear(8, 3))


@case
def messages_by_index_add() -> Case:
    def forward(m: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        B, N, C = x.shape
        flat = x.reshape(B * N, C)
        shift = torch.arange(B)[:, None] * N
        source, target = (edges[..., 0] + shift).reshape(-1), (edges[..., 1] + shift).reshape(-1)
        sent = m["message"](flat[source]).relu()
        got = torch.zeros(B * N, 8).index_add_(0, target, sent)
        return m["h"](got.view(B, N, 8).mean(1))

    return graph_of(forward, message=nn.Linear(6, 8), h=nn.Linear(8, 3))


@case
def dense_adjacency() -> Case:
    model = Of(lambda m, x, a: m["h"](F.relu(a @ m["n"](x)).mean(1)), n=nn.Linear(6, 8), h=nn.Linear(8, 3))
    return Case(model, (torch.randn(4, 5, 6), torch.rand(4, 5, 5).softmax(-1), classes(3, 4)))


@case
def graph_attention_by_a_vector() -> Case:
    class GAT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.a, self.h = nn.Linear(6, 8, bias=False), nn.Parameter(torch.randn(8)), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
            y = self.w(x)
            e = y @ self.a
            e = F.leaky_relu(e[:, :, None] + e[:, None, :], 0.2).masked_fill(near < 0.3, -1e9)
            return self.h((e.softmax(-1) @ y).mean(1))

    return Case(GAT(), (torch.randn(4, 5, 6), torch.rand(4, 5, 5), classes(3, 4)))


@case
def last_token_by_argmax() -> Case:
    def forward(m: Any, ids: torch.Tensor) -> torch.Tensor:
        x = m["h"](m["e"](ids))
        last = (ids != 0).int().cumsum(-1).argmax(-1)
        return x[torch.arange(ids.shape[0]), last]

    return Case(Of(forward, e=nn.Embedding(9, 8), h=nn.Linear(8, 3)), (classes(9, 4, 6), classes(3, 4)))


@case
def k_max_pooling() -> Case:
    model = Of(lambda m, x: m["h"](m["n"](x).topk(3, dim=1)[0].flatten(1)), n=nn.Linear(6, 4), h=nn.Linear(12, 3))
    return Case(model, (torch.randn(4, 7, 6), classes(3, 4)))


@case
def sorted_features() -> Case:
    model = Of(lambda m, x: m["h"](torch.sort(m["n"](x), dim=-1).values), n=nn.Linear(6, 5), h=nn.Linear(5, 3))
    return Case(model, (table(), classes(3, 8)))


# Gradients that stop.


@case
def vector_quantized() -> Case:
    class VQ(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.book = nn.Linear(6, 4), nn.Linear(4, 6), nn.Embedding(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.encoder(x)
            distance = (z[:, None] - self.book.weight[None]).pow(2).sum(-1)
            q = self.book(distance.argmin(-1))
            loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
            q = z + (q - z).detach()
            return {"loss": loss + F.mse_loss(self.decoder(q), x)}

    return Case(VQ(), {"x": table()}, None)


@case
def straight_through() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(m["n"](x))
        return m["h"](y + ((y > 0.5).float() - y).detach())

    return Case(Of(forward, n=nn.Linear(6, 8), h=nn.Linear(8, 3)), (table(), classes(3, 8)))


@case
def self_distillation() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = m["n"](x).softmax(-1)
        return {"loss": -(target * m["n"](x + 0.1).log_softmax(-1)).sum(-1).mean()}

    return Case(Of(forward, n=small_net()), (table(),), None)


@case
def stop_gradient_siamese() -> Case:
    def forward(m: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        z1, z2 = m["n"](a), m["n"](b)
        p1, p2 = m["p"](z1), m["p"](z2)
        near = -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
        return {"loss": near}

    return Case(Of(forward, n=small_net(), p=nn.Linear(3, 3)), (table(), table()), None)


# Pictures and signals.


def picture_net(*layers: nn.Module, channels: int = 4, size: int = 8) -> Case:
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))
    x = pictures(size, channels)
    model(x)
    return Case(model, (x, classes(3, 4)))


@case
def pixel_shuffle() -> Case:
    return picture_net(nn.Conv2d(4, 8, 3, padding=1), nn.PixelShuffle(2), nn.ReLU())


@case
def pixel_unshuffle() -> Case:
    return picture_net(nn.PixelUnshuffle(2), nn.Conv2d(16, 4, 3))


@case
def reflect_and_replicate_padding() -> Case:
    return picture_net(nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3), nn.ReplicationPad2d(1), nn.Conv2d(4, 4, 3))


@case
def padding_modes_of_convolutions() -> Case:
    reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    return picture_net(reflect, nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))


@case
def cropping_by_negative_padding() -> Case:
    return Case(
        Of(lambda m, x: m["c"](F.pad(x, (-1, -1, -1, 0))).mean((2, 3)), c=nn.Conv2d(3, 3, 3)), (pictures(), classes(3, 4))
    )


@case
def unfold_patches() -> Case:
    model = Of(lambda m, x: m["h"](F.unfold(x, 4, stride=4).transpose(1, 2)).mean(1), h=nn.Linear(48, 3))
    return Case(model, (pictures(), classes(3, 4)))


@case
def patches_by_tensor_unfold() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return m["h"](patches).mean(1)

    return Case(Of(forward, h=nn.Linear(48, 3)), (pictures(), classes(3, 4)))


@case
def bicubic() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m["c"](F.interpolate(x, size=(12, 12), mode="bicubic")).mean((2, 3))

    return Case(Of(forward, c=nn.Conv2d(3, 3, 3)), (pictures(), classes(3, 4)))


@case
def spatial_transformer() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        theta = m["theta"](x.flatten(1)).view(-1, 2, 3) + torch.eye(2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return m["h"](F.grid_sample(x, grid, align_corners=False).flatten(1))

    theta = nn.Linear(192, 6)
    nn.init.normal_(theta.weight, std=0.02)
    return Case(Of(forward, theta=theta, h=nn.Linear(192, 3)), (pictures(), classes(3, 4)))


@case
def adaptive_max_pooling() -> Case:
    return picture_net(nn.Conv2d(4, 4, 3), nn.AdaptiveMaxPool2d(2))


@case
def squeeze_and_excitation_by_hand() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(m["b"](F.relu(m["a"](x.mean((2, 3))))))
        return (x * gate[:, :, None, None]).amax((2, 3))

    return Case(Of(forward, a=nn.Linear(3, 2), b=nn.Linear(2, 3)), (pictures(), classes(3, 4)))


@case
def channel_and_spatial_attention() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        seen = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        return (x * torch.sigmoid(m["c"](seen))).mean((2, 3))

    return Case(Of(forward, c=nn.Conv2d(2, 1, 3, padding=1)), (pictures(), classes(3, 4)))


@case
def weight_norm() -> Case:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    return Case(net, (table(), classes(3, 8)))


@case
def weight_standardization() -> Case:
    class Conv(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            w = self.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
            return F.conv2d(x, w, self.bias, self.stride, self.padding)

    return picture_net(Conv(4, 4, 3), nn.ReLU())


@case
def gram_matrix() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        f = m["c"](x).flatten(2)
        return m["h"]((f @ f.transpose(1, 2) / f.shape[-1]).flatten(1))

    return Case(Of(forward, c=nn.Conv2d(3, 4, 3), h=nn.Linear(16, 3)), (pictures(), classes(3, 4)))


# Activations and small functions.


@case
def many_activations() -> Case:
    names = "Softplus SELU CELU Softsign Hardshrink Softshrink Tanhshrink LogSigmoid Hardtanh ReLU6 Mish Threshold".split()
    options = {"Softplus": {"beta": 2.0}, "Threshold": {"threshold": 0.1, "value": 0.05}}
    layers = []
    for name in names:
        layers += [nn.Linear(6, 6), getattr(nn, name)(**options.get(name, {}))]
    return Case(nn.Sequential(*layers, nn.Linear(6, 3)), (table(), classes(3, 8)))


@case
def siren() -> Case:
    model = Of(lambda m, x: m["b"](torch.sin(5 * m["a"](x))), a=nn.Linear(6, 8), b=nn.Linear(8, 3))
    return Case(model, (table(), torch.randn(8, 3)), "mse")


@case
def fourier_features() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        angles = x[..., None] * 2.0 ** torch.arange(3) * math.pi
        return m["n"](torch.cat([angles.sin(), angles.cos()], -1).flatten(1))

    return Case(Of(forward, n=nn.Linear(36, 3)), (table(), torch.randn(8, 3)), "mse")


@case
def bilinear_layer() -> Case:
    return Case(Of(lambda m, a, b: m["b"](a, b), b=nn.Bilinear(6, 6, 3)), (table(), table(), classes(3, 8)))


@case
def factorization_machine() -> Case:
    class FM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.v = nn.Linear(6, 1), nn.Parameter(torch.randn(6, 4) * 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pairs = ((x @ self.v) ** 2 - (x**2) @ (self.v**2)).sum(1, keepdim=True)
            return self.linear(x) + 0.5 * pairs

    return Case(FM(), (table(), classes(2, 8, 1)), "bce")


@case
def radial_basis_by_cdist() -> Case:
    class RBF(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.h = nn.Parameter(torch.randn(5, 6)), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.h(torch.exp(-(torch.cdist(x, self.centres) ** 2) / 6))

    return Case(RBF(), (table(), classes(3, 8)))


@case
def embedding_bag() -> Case:
    model = nn.Sequential(nn.EmbeddingBag(9, 8, mode="mean"), nn.Linear(8, 3))
    return Case(model, (classes(9, 4, 6), classes(3, 4)))


@case
def rounding_and_remainders() -> Case:
    def forward(m: Any, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return m["n"](x) + m["e"](n % 4) + m["e"](n // 4) + torch.floor(x[:, :3]) + torch.sign(x[:, 3:])

    return Case(Of(forward, n=nn.Linear(6, 3), e=nn.Embedding(4, 3)), (table(), classes(16, 8), torch.randn(8, 3)), "mse")


@case
def scan_of_a_state_space() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        decay, state, made = torch.sigmoid(m["a"](x)), torch.zeros(x.shape[0], 6), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + x[:, t]
            made.append(state)
        return m["h"](torch.stack(made, 1)).mean(1)

    return Case(Of(forward, a=nn.Linear(6, 6), h=nn.Linear(6, 3)), (torch.randn(4, 5, 6), classes(3, 4)))


@case
def linear_attention_by_cumsum() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = F.elu(m["q"](x)) + 1, F.elu(m["k"](x)) + 1, m["v"](x)
        kv = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        return torch.einsum("btd,btde->bte", q, kv) / (q * k.cumsum(1)).sum(-1, keepdim=True)

    return Case(Of(forward, **{n: nn.Linear(6, 6) for n in "qkv"}), (torch.randn(4, 5, 6), torch.randn(4, 5, 6)), "mse")


@case
def token_shift_by_negative_padding() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m["h"](x + F.pad(x, (0, 0, 1, -1))).mean(1)

    return Case(Of(forward, h=nn.Linear(6, 3)), (torch.randn(4, 5, 6), classes(3, 4)))


@case
def learned_uncertainty_of_tasks() -> Case:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.log_sigma = small_net(4), nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor, value: torch.Tensor, kind: torch.Tensor) -> Any:
            y = self.net(x)
            losses = torch.stack([F.mse_loss(y[:, 0], value), F.cross_entropy(y[:, 1:], kind)])
            return {"loss": (torch.exp(-self.log_sigma) * losses + self.log_sigma).sum()}

    return Case(Tasks(), {"x": table(), "value": torch.randn(8), "kind": classes(3, 8)}, None)


@case
def maxout() -> Case:
    model = Of(lambda m, x: m["h"](m["n"](x).view(-1, 4, 2).max(-1).values), n=nn.Linear(6, 8), h=nn.Linear(4, 3))
    return Case(model, (table(), classes(3, 8)))


@case
def highway_by_lerp() -> Case:
    model = Of(
        lambda m, x: m["h"](torch.lerp(x, m["a"](x), torch.sigmoid(m["g"](x)))),
        a=nn.Linear(6, 6),
        g=nn.Linear(6, 6),
        h=nn.Linear(6, 3),
    )
    return Case(model, (table(), classes(3, 8)))


@case
def masked_mean_of_floats() -> Case:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        mask = (x.abs().sum(-1) > 1.0).float()
        return (m["h"](x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)

    return Case(Of(forward, h=nn.Linear(6, 3)), (torch.randn(4, 5, 6), classes(3, 4)))


@case
def missing_numbers() -> Case:
    x = table()
    x[0, 1] = float("nan")
    model = Of(lambda m, x: m["n"](torch.where(torch.isnan(x), torch.zeros_like(x), x)), n=small_net())
    return Case(model, (x, classes(3, 8)))


# Models of libraries.


@case
def gpt2_classification() -> Case:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=48, n_layer=2, n_head=4, num_labels=3, pad_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return Case(GPT2ForSequenceClassification(config), {**text(), "labels": classes(3, 4)}, None)


@case
def phi3() -> Case:
    from transformers import Phi3Config, Phi3ForCausalLM

    config = Phi3Config(
        vocab_size=100,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
    )
    return Case(Phi3ForCausalLM(config), causal(), None)


@case
def opt() -> Case:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=100,
        hidden_size=48,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        word_embed_proj_dim=48,
        dropout=0.0,
        pad_token_id=1,
    )
    return Case(OPTForCausalLM(config), causal(), None)


@case
def mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        num_local_experts=4,
    )
    config._experts_implementation = "batched_mm"
    return Case(MixtralForCausalLM(config), causal(), None)


@case
def vit_mae() -> Case:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(
        image_size=16,
        patch_size=4,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        decoder_hidden_size=24,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=48,
    )
    return Case(ViTMAEForPreTraining(config), {"pixel_values": torch.randn(4, 3, 16, 16)}, None)


@case
def rwkv() -> Case:
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(vocab_size=60, context_length=16, hidden_size=24, num_hidden_layers=2, attention_hidden_size=24)
    return Case(RwkvForCausalLM(config), causal(12, 60), None)


@case
def mamba2() -> Case:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=60, hidden_size=16, num_heads=4, head_dim=8, state_size=8, num_hidden_layers=1, n_groups=1, chunk_size=4
    )
    return Case(Mamba2ForCausalLM(config), causal(8, 60), None)


@case
def patch_tst() -> Case:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
        d_model=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        norm_type="layernorm",
    )
    return Case(
        PatchTSTForPrediction(config), {"past_values": torch.randn(4, 16, 2), "future_values": torch.randn(4, 4, 2)}, None
    )


@case
def wav2vec2() -> Case:
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        vocab_size=20,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        conv_dim=(8, 8),
        conv_stride=(4, 4),
        conv_kernel=(8, 4),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        num_labels=3,
        mask_time_prob=0.0,
        apply_spec_augment=False,
        layerdrop=0.0,
        classifier_proj_size=8,
    )
    return Case(Wav2Vec2ForSequenceClassification(config), {"input_values": torch.randn(4, 400), "labels": classes(3, 4)}, None)


class Disagrees(Exception):
    """Annulus computes something else than the model itself."""


#: Relative difference of two losses in float32 that rounding explains.
TOLERANCE = 2e-5


def try_out(name: str, folder: Path) -> None:
    """Exports a case, lets the program compute it, and compares loss and gradient with PyTorch's.

    Raises:
        ExportError, ProgramError, CheckError: of the package.
        Disagrees: the exported loss is not the model's.
    """
    made = make(name)
    own = None
    if not _is_random(name):
        own = _eager(made)
    made.export(folder)
    annulus.check(folder, devices=["cpu"])
    with safe_open(folder / "reference.safetensors", "np") as file:
        loss = float(file.metadata()["loss"])
    if own is not None and abs(own - loss) > TOLERANCE * abs(loss):
        raise Disagrees(f"the model's loss is {own:.7g}, and the export's {loss:.7g}")


RANDOM = (
    "vae",
    "ddpm",
    "noise_layer",
    "gumbel_softmax",
    "drop_path_by_hand",
    "masked_autoencoder",
    "vit_mae",
    "wav2vec2",
    "patch_tst",
)


def _is_random(name: str) -> bool:
    """Whether the model draws other numbers each time, or has dropout, which the reference switches off."""
    return name in RANDOM


def objective_of(made: Case) -> tuple[objective.Objective, list[torch.Tensor]]:
    """The model with its loss, and all samples."""
    columns, keys = samples.arrays(made.samples)
    targets = []
    if made.loss is not None:
        targets = [len(columns) - 1] if keys is None else [at for at, key in enumerate(keys) if key in samples.TARGETS][:1]
    return objective.Objective(made.model, made.loss, keys, targets), [torch.from_numpy(column) for column in columns]


def _eager(made: Case) -> float:
    """The model's own loss of the first samples, in training mode."""
    whole, columns = objective_of(made)
    with torch.no_grad():
        return copy.deepcopy(whole).train()(*(column[:4] for column in columns))[0].item()


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    counts: dict[str, list[str]] = {}
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                try_out(name, Path(scratch))
                kind, told = "agrees", ""
            except Exception as error:
                kind = type(error).__name__
                told = str(error) if isinstance(error, (annulus.AnnulusError, Disagrees)) else traceback.format_exc()
        counts.setdefault(kind, []).append(name)
        print(f"{name}: {kind}", *(f"    {line}" for line in told.splitlines()), sep="\n", flush=True)
    print({kind: len(found) for kind, found in counts.items()}, {k: v for k, v in counts.items() if k != "agrees"})


if __name__ == "__main__":
    main(sys.argv[1:])
