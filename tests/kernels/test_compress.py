"""Compression against double precision, against `transformers` on a tiny DeepSeek-V4, and at its edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from kvfsm.kernels import fp8_rows
from kvfsm.kernels.call_refusal import CallRefusal
from kvfsm.kernels.compress import (
    CARRY,
    NOTHING,
    ROWS,
    Compressor,
    Windows,
    compress,
    compress_index_key,
    compress_index_key_plan,
    compress_plan,
    compress_v4,
    compress_v4_plan,
)
from kvfsm.kernels.entries import Entries
from kvfsm.kernels.floats import to_bf16
from kvfsm.kernels.launch import LaunchRefused, Pointer
from kvfsm.kernels.reading import Check, Side
from kvfsm.runtime.generated import Refusal
from kvfsm.runtime.generated.compressed_kv import LAYOUT, CompressedKvState
from kvfsm.runtime.integrations.tiny_models import CSA as CSA_LAYER
from kvfsm.runtime.integrations.tiny_models import HCA as HCA_LAYER
from kvfsm.runtime.integrations.tiny_models import build, fix_threads

from .windows import CSA, HCA, INDEX, ODD, TINY_HCA, windows_of

EVERY = (CSA, HCA, INDEX, TINY_HCA, ODD)


def entries_of(compressor: Compressor, windows: Windows[Any]) -> np.ndarray:
    out, refusals = np.zeros((windows.most, compressor.elements), np.float32), np.zeros(windows.most, np.uint8)
    compress(compressor, windows, out, refusals)
    assert not refusals.any()
    return out


def exact(compressor: Compressor, windows: Windows[Any]) -> np.ndarray:
    """The same in double precision, an entry at a time, as the report writes it."""
    elements, ratio = compressor.elements, compressor.ratio
    bias, found = windows.bias.astype(np.float64), []
    for n in range(windows.most):
        kv, gate = [], []
        if compressor.overlaps and windows.origin[n] != NOTHING:
            is_carried = windows.origin[n] == CARRY
            rows, gates = (windows.carry_kv, windows.carry_gate) if is_carried else (windows.kv, windows.gate)
            is_folded = compressor.carry_folded if is_carried else compressor.rows_folded
            at = slice(windows.previous[n], windows.previous[n] + ratio)
            kv.append(rows[at, :elements])
            gate.append(gates[at, :elements] + (0 if is_folded else bias[:, :elements]))
        own = slice(compressor.width - elements, compressor.width)
        at = slice(windows.current[n], windows.current[n] + ratio)
        kv.append(windows.kv[at, own])
        gate.append(windows.gate[at, own] + (0 if compressor.rows_folded else bias[:, own]))
        values, scores = np.concatenate(kv).astype(np.float64), np.concatenate(gate).astype(np.float64)
        weights = np.exp(scores - scores.max(0))
        entry = (weights / weights.sum(0) * values).sum(0)
        entry *= windows.weight / np.sqrt((entry**2).mean() + compressor.epsilon)
        cosine, sine = np.split(windows.rotary[windows.positions[n]].astype(np.float64), 2)
        even, odd = entry[-compressor.rope :: 2].copy(), entry[-compressor.rope + 1 :: 2].copy()
        entry[-compressor.rope :: 2] = even * cosine - odd * sine
        entry[-compressor.rope + 1 :: 2] = odd * cosine + even * sine
        found.append(entry)
    return np.array(found)


@pytest.mark.parametrize("compressor", EVERY)
@pytest.mark.parametrize("forms", [(True, True), (True, False), (False, True), (False, False)])
def test_entries_are_what_the_report_says(compressor: Compressor, forms: tuple[bool, bool]) -> None:
    compressor = replace(compressor, rows_folded=forms[0], carry_folded=forms[1])
    windows = windows_of(compressor, seed=7, entries=6)
    assert np.abs(entries_of(compressor, windows) - exact(compressor, windows)).max() < 5e-6


def test_the_form_of_the_gates_matters() -> None:
    windows = windows_of(CSA, seed=8, entries=6)
    raw, folded = entries_of(CSA, windows), entries_of(replace(CSA, rows_folded=True), windows)
    assert np.abs(raw - folded).max() > 0.1
    carried = entries_of(replace(CSA, carry_folded=False), windows)
    changed = np.abs(raw - carried).max(axis=1) > 0.1
    assert changed.tolist() == (windows.origin == CARRY).tolist()


def test_folding_the_bias_first_gives_the_same_bits() -> None:
    windows = windows_of(TINY_HCA, seed=9, entries=5, stride=TINY_HCA.width)
    aligned = replace(windows, current=(np.arange(5) * TINY_HCA.ratio).astype(np.uint32))
    gate = windows.gate.copy()
    for first in range(0, 5 * TINY_HCA.ratio, TINY_HCA.ratio):
        gate[first : first + TINY_HCA.ratio] += windows.bias
    folded = entries_of(replace(TINY_HCA, rows_folded=True), replace(aligned, gate=gate))
    assert np.array_equal(entries_of(TINY_HCA, aligned), folded)


# -- Beside transformers -----------------------------------------------------------------------------------------------


def rows_of_a_run(chunks: tuple[int, ...]) -> list[tuple[str, Any, np.ndarray, np.ndarray, np.ndarray]]:
    """Of every compressor of a tiny DeepSeek-V4: layer type, module, rows, their raw gates, the entries it made."""
    fix_threads()
    model, _ = build("tiny-deepseek-v4", seed=3)
    seen: dict[Any, list[torch.Tensor]] = {}

    def watch(module: Any) -> Callable[..., None]:
        def hook(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.setdefault(module, []).append(named.get("hidden_states", arguments[0] if arguments else None))

        return hook

    modules = []
    for layer, kind in enumerate(model.config.layer_types):
        if kind in (CSA_LAYER, HCA_LAYER):
            compressor = model.model.layers[layer].self_attn.compressor
            modules.append((kind, "compressor", layer, compressor))
            if kind == CSA_LAYER:
                modules.append((kind, "indexer", layer, compressor.indexer))
    for *_, module in modules:
        module.register_forward_pre_hook(watch(module), with_kwargs=True)
    cache = transformers.DynamicCache(config=model.config)
    tokens = torch.randint(0, 256, (1, sum(chunks)), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        at = 0
        for chunk in chunks:
            model(input_ids=tokens[:, at : at + chunk], cache=cache, use_cache=True)
            at += chunk
        found = []
        for kind, name, layer, module in modules:
            hidden = torch.cat(seen[module], 1)[0]
            made = cache.layers[layer].compressed_kv[name][0].numpy()
            found.append((kind, module, module.kv_proj(hidden).numpy(), module.gate_proj(hidden).numpy(), made))
    return found


def windows_of_a_run(kind: str, module: Any, kv: np.ndarray, gate: np.ndarray) -> tuple[Compressor, Windows[Any]]:
    ratio, elements = module.compress_rate, module.head_dim
    n = len(kv) // ratio
    starts = torch.arange(n)[None] * ratio
    dummy = torch.zeros(1, n, elements)
    cosine, sine = module.rotary_emb(dummy, position_ids=starts, layer_type=module.rope_layer_type)
    rope = 2 * cosine.shape[-1]
    compressor = Compressor(
        elements, ratio, kind == CSA_LAYER, rope, module.kv_norm.variance_epsilon, rows_folded=False
    )
    first = (np.arange(n) * ratio).astype(np.uint32)
    origin = np.full(n, ROWS if compressor.overlaps else NOTHING, np.uint8)
    origin[0] = NOTHING
    return compressor, Windows(
        kv=kv,
        gate=gate,
        row_count=len(kv),
        row_stride=kv.shape[1],
        bias=module.position_bias.detach().numpy(),
        weight=module.kv_norm.weight.detach().numpy(),
        rotary=np.concatenate((cosine[0].numpy(), sine[0].numpy()), 1),
        position_count=n,
        current=first,
        positions=np.arange(n, dtype=np.uint32),
        origin=origin,
        previous=np.maximum(first.astype(np.int64) - ratio, 0).astype(np.uint32),
        most=n,
    )


TOLERANCE = 4e-6
"""Of entries whose root mean square is about 1: both sides round in float32, in another order, and exp differs too."""


def test_entries_are_those_of_transformers() -> None:
    compared = set()
    for kind, module, kv, gate, made in rows_of_a_run((61, 3, 30)):
        compressor, windows = windows_of_a_run(kind, module, kv, gate)
        assert made.shape == (94 // compressor.ratio, compressor.elements)
        assert np.abs(entries_of(compressor, windows) - made).max() < TOLERANCE
        wrong = entries_of(replace(compressor, rows_folded=True), windows)
        assert np.abs(wrong - made).max() > 1000 * TOLERANCE
        compared.add((kind, compressor.elements, compressor.overlaps))
    assert compared == {(CSA_LAYER, 32, True), (CSA_LAYER, 16, True), (HCA_LAYER, 32, False)}


def test_entries_that_go_on_from_a_carry_are_those_of_transformers() -> None:
    """As after a restore: the window before comes from the rows carried over, whose gates hold the bias."""
    for kind, module, kv, gate, made in rows_of_a_run((64, 32)):
        compressor, windows = windows_of_a_run(kind, module, kv, gate)
        if not compressor.overlaps:
            continue
        cut, ratio = 64, compressor.ratio
        carry = slice(cut - ratio, cut)
        bias = windows.bias[:, : compressor.elements]
        later = replace(
            windows,
            kv=kv[cut:],
            gate=gate[cut:],
            row_count=len(kv) - cut,
            current=windows.current[cut // ratio :] - np.uint32(cut),
            positions=windows.positions[cut // ratio :],
            origin=np.array([CARRY] + [ROWS] * (32 // ratio - 1), np.uint8),
            previous=np.maximum(windows.previous[cut // ratio :].astype(np.int64) - cut, 0).astype(np.uint32),
            most=32 // ratio,
            carry_kv=kv[carry, : compressor.elements].copy(),
            carry_gate=gate[carry, : compressor.elements] + bias,
            carry_count=ratio,
            carry_stride=compressor.elements,
        )
        assert np.abs(entries_of(compressor, later) - made[cut // ratio :]).max() < TOLERANCE
        dropped = replace(later, origin=np.where(later.origin == CARRY, NOTHING, later.origin).astype(np.uint8))
        assert np.abs(entries_of(compressor, dropped)[0] - made[cut // ratio]).max() > 1000 * TOLERANCE


# -- Edges -------------------------------------------------------------------------------------------------------------


def test_gates_that_are_not_plain_numbers_do_what_softmax_does() -> None:
    compressor = replace(TINY_HCA, rope=0, rows_folded=True)
    windows = windows_of(compressor, seed=10, entries=1)
    start = int(windows.current[0])
    windows.gate[start : start + 3, 0] = -np.inf  # rows that don't count
    windows.gate[start : start + 16, 1] = -np.inf  # none counts
    windows.gate[start + 2, 2] = np.nan
    windows.gate[start + 2, 3] = np.inf
    windows.gate[start + 9, 4] = 1e30  # one counts alone
    windows.gate[start : start + 16, 5] = -1e30  # all alike
    kv = torch.tensor(windows.kv[start : start + 16, :32])
    gate = torch.tensor(windows.gate[start : start + 16, :32])
    pooled = (kv * gate.softmax(0)).sum(0).numpy()
    assert np.isnan(pooled).nonzero()[0].tolist() == [1, 2, 3]
    found = entries_of(replace(compressor, epsilon=0.0), windows)[0]
    assert np.isnan(found).all() and (found.view(np.uint32) == 0x7FC00000).all()  # the norm spreads a NaN
    for channel in (1, 2, 3):
        windows.gate[start : start + 16, channel] = 0
        pooled[channel] = windows.kv[start : start + 16, channel].mean()
    expected = pooled / np.sqrt((pooled.astype(np.float64) ** 2).mean() + compressor.epsilon) * windows.weight
    assert np.abs(entries_of(compressor, windows)[0] - expected).max() < 2e-6


def test_rows_that_are_not_there_are_refused() -> None:
    windows = windows_of(CSA, seed=11, entries=7)
    windows.current[0] = windows.row_count - CSA.ratio + 1
    windows.positions[1] = windows.position_count
    windows.origin[2] = 3
    windows.origin[3], windows.previous[3] = CARRY, windows.carry_count - CSA.ratio + 1
    windows.origin[4], windows.previous[4] = ROWS, 0xFFFFFFFF
    out, refusals = np.full((7, 512), -1, np.float32), np.zeros(7, np.uint8)
    refusals[5] = Refusal.STALE
    compress(CSA, windows, out, refusals)
    bad = CallRefusal.BAD_ARGUMENT
    assert refusals.tolist() == [bad, bad, bad, bad, bad, Refusal.STALE, 0]
    assert (out[:6] == -1).all() and (out[6] != -1).all()
    hca = windows_of(TINY_HCA, seed=11, entries=1)
    hca.origin[0] = ROWS
    one = np.zeros(1, np.uint8)
    compress(TINY_HCA, hca, np.zeros((1, 32), np.float32), one)
    assert one[0] == bad


def test_only_entries_in_use_are_made() -> None:
    windows = replace(windows_of(INDEX, seed=12, entries=4), live=np.array([2]))
    out, refusals = np.full((4, 128), -1, np.float32), np.zeros(4, np.uint8)
    compress(INDEX, windows, out, refusals)
    assert (out[2:] == -1).all() and (out[:2] != -1).all()


def filling(n: int) -> Check[np.ndarray]:
    word = np.array([LAYOUT.pack(state=CompressedKvState.FILLING, generation=2)], np.uint64)
    return Check("compressed_kv", word, np.full(n, 2, np.uint32), np.zeros(n, np.uint8), Side.WRITER)


def test_a_v4_page_holds_what_compression_and_quantising_give() -> None:
    windows = windows_of(CSA, seed=13, entries=5)
    at, rows = np.zeros(5, np.int32), np.array([4, 0, 1, 2, 3], np.uint32)
    pages = np.zeros((1, 5 * 584), np.uint8)
    check = filling(5)
    check.expected[4] = 1
    compress_v4(CSA, windows, pages, 5, at, rows, check)
    assert check.refusals.tolist() == [0, 0, 0, 0, Refusal.STALE]
    entries = entries_of(CSA, windows)
    data, scales = fp8_rows.v4_row(to_bf16(entries))
    groups = entries[:, :448].reshape(5, 7, 64)
    group_scales, exponents = fp8_rows.v4_scales_of(groups, fp8_rows.V4_LEAST_PEAK)
    data[:, :448] = fp8_rows.quantised(groups, group_scales).reshape(5, 448)  # from float32, not by way of bfloat16
    scales[:, :7] = exponents
    data[4] = scales[4] = 0
    assert np.array_equal(pages[0, : 5 * 576].reshape(5, 576)[rows], data)
    assert np.array_equal(pages[0, 5 * 576 :].reshape(5, 8)[rows], scales)


def test_an_index_key_holds_what_compression_and_quantising_give() -> None:
    windows = windows_of(INDEX, seed=14, entries=3)
    pages = np.zeros((1, 3 * 132), np.uint8)
    compress_index_key(INDEX, windows, pages, 3, np.zeros(3, np.int32), np.arange(3, dtype=np.uint32), filling(3))
    entries = entries_of(INDEX, windows)
    scales = fp8_rows.scales_of(entries, fp8_rows.INDEX_LEAST_PEAK)
    assert np.array_equal(pages[0, 3 * 128 :].view(np.float32), scales)
    assert np.array_equal(pages[0, : 3 * 128].reshape(3, 128), fp8_rows.quantised(entries, scales))
    back = fp8_rows.dequantised(pages[0, : 3 * 128].reshape(3, 128), scales)
    assert (np.abs(back - entries) <= np.abs(entries) * 0.063 + scales[:, None] * 2.0**-9).all()


def pointers(windows: Windows[Any]) -> Windows[Pointer]:
    at = Pointer(1 << 20, 1 << 24)
    names = ("kv", "gate", "bias", "weight", "rotary", "current", "positions", "origin", "previous")
    return replace(windows, carry_kv=at, carry_gate=at, **dict.fromkeys(names, at))


def test_plans_refuse_what_kernels_do_not_take() -> None:
    given, at = pointers(windows_of(CSA, seed=1, entries=4)), Pointer(1 << 20, 1 << 24)
    assert compress_plan(CSA, given, at, at).grid == (4, 1, 1)
    for compressor, what in (
        (replace(CSA, elements=516), "'elements' .* is 516; fix: pass at most 512"),
        (replace(CSA, elements=30), "'elements' .* is 30; fix: use a multiple of 4"),
        (replace(CSA, rope=6), "'rope' .* is 6; fix: use a multiple of 4"),
        (replace(CSA, ratio=0), "'ratio' .* is 0; fix: pass at least 1"),
    ):
        with pytest.raises(LaunchRefused, match=what):
            compress_plan(compressor, given, at, at)
    with pytest.raises(LaunchRefused, match=r"'row_stride' .* is 1020; fix: pass at least 1024"):
        compress_plan(CSA, replace(given, row_stride=1020), at, at)
    with pytest.raises(LaunchRefused, match=r"'carry_gate' .* is None; fix: pass the 9 rows"):
        compress_plan(CSA, replace(given, carry_gate=None), at, at)
    with pytest.raises(LaunchRefused, match=r"argument 8 'bias' .* needs 16384 bytes"):
        compress_plan(CSA, replace(given, bias=Pointer(16, 16383)), at, at)
    guard = Check("compressed_kv", at, at, at, Side.WRITER)
    places = Entries(at, 37440, 2, at, 4)
    assert compress_v4_plan(CSA, given, places, 64, at, guard).grid == (4, 1, 1)
    with pytest.raises(LaunchRefused, match=r"'elements' .* is 32; fix: pass 512, or compress to float32"):
        compress_v4_plan(TINY_HCA, given, places, 64, at, guard)
    with pytest.raises(LaunchRefused, match=r"'elements' .* is 512; fix: pass 128, or compress to float32"):
        compress_index_key_plan(CSA, given, places, 64, at, guard)
    with pytest.raises(LaunchRefused, match=r"'most' .* is 4; fix: pass as many places for entries, which are 3"):
        compress_v4_plan(CSA, given, replace(places, most=3), 64, at, guard)
    with pytest.raises(LaunchRefused, match=r"'live' .* is None; fix: pass it with the windows"):
        compress_v4_plan(CSA, given, replace(places, live=at), 64, at, guard)
