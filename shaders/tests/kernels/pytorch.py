"""Writes pytorch.txt, the numbers that tests compare with: python3 pytorch.py > pytorch.txt

Made with PyTorch 2.15 on a CPU, in double precision.
"""

import torch
from torch.nn import functional as F


def wave(shape, seed):
    count = torch.Size(shape).numel()
    x = torch.sin(0.7 * torch.arange(count, dtype=torch.float64) + seed)
    return x.float().double().reshape(shape)


def show(name, x):
    print(name, *(f"{number:.9g}" for number in x.detach().flatten().tolist()))


def attention():
    hidden = torch.ones(3, 5, dtype=torch.bool)
    hidden[1, :] = False
    hidden[2, 1] = False
    cases = {
        "hidden": dict(attn_mask=hidden),
        "added": dict(attn_mask=wave((1, 2, 3, 5), 4.0), scale=0.3),
        "causal": dict(is_causal=True),
    }
    for name, options in cases.items():
        leaves = [wave((1, 2, 3, 4), 0.0), wave((1, 1, 5, 4), 1.0), wave((1, 1, 5, 4), 2.0)]
        for leaf in leaves:
            leaf.requires_grad_()
        out = F.scaled_dot_product_attention(*leaves, enable_gqa=True, **options)
        show(f"attention.{name}.out", out)
        (out * wave((1, 2, 3, 4), 3.0)).sum().backward()
        for what, leaf in zip("qkv", leaves):
            show(f"attention.{name}.{what}", leaf.grad)


def functions():
    x = (4 * wave((9,), 0.0)).requires_grad_()
    out = F.gelu(x, approximate="tanh")
    show("gelu_tanh.out", out)
    out.sum().backward()
    show("gelu_tanh.x", x.grad)
    gate, x = (4 * wave((9,), 0.0)).requires_grad_(), wave((9,), 1.0).requires_grad_()
    out = F.silu(gate) * x
    show("swiglu.out", out)
    out.sum().backward()
    show("swiglu.gate", gate.grad)
    show("swiglu.x", x.grad)
    x, gamma = wave((2, 8), 0.0).requires_grad_(), wave((8,), 1.0).requires_grad_()
    out = F.rms_norm(x, (8,), gamma, eps=1e-5)
    show("rms_norm.out", out)
    (out * wave((2, 8), 2.0)).sum().backward()
    show("rms_norm.x", x.grad)
    show("rms_norm.gamma", gamma.grad)


def rotary():
    x = wave((1, 2, 3, 8), 0.0).requires_grad_()
    angles = torch.arange(3, dtype=torch.float64)[:, None] * 10_000 ** (-torch.arange(4) / 4)
    angles = torch.cat([angles, angles], dim=1)[None]
    halves = x.chunk(2, dim=3)
    out = x * angles.cos() + torch.cat([-halves[1], halves[0]], dim=3) * angles.sin()
    show("rope.cosine", angles.cos())
    show("rope.sine", angles.sin())
    show("rope.out", out)
    (out * wave((1, 2, 3, 8), 1.0)).sum().backward()
    show("rope.x", x.grad)


attention()
functions()
rotary()
