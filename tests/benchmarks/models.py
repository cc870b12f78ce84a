"""Profiles to measure with: real block sizes, rows of a few bytes, so that a million tokens fit in memory.

The manager's work depends on slots and blocks, never on the bytes in a row.
"""

from __future__ import annotations

from kvfsm.runtime.profile import Profile
from kvfsm.runtime.profile_plan import GroupPlan, PartPlan, ProfilePlan


def hybrid() -> Profile:
    """Five kinds at V4's granule of 256 tokens: ratios 4 and 128, a window of 128, checkpoints at boundaries."""
    return ProfilePlan(
        name="bench_hybrid",
        title="DeepSeek-V4's granule with thin rows",
        source="granule, ratios and window of the DeepSeek-V4 report, 4.2.1",
        granule=256,
        identity="weights=none;positions=none;dtype=uint8;scores=folded",
        window=128,
        window_policy="checkpoint",
        scores="folded",
        groups=(
            GroupPlan("csa", "compressed_kv", (1,), (PartPlan("entries", 64, (1,), "uint8", "latent"),), ratio=4),
            GroupPlan("hca", "compressed_kv", (0,), (PartPlan("entries", 2, (1,), "uint8", "latent"),), ratio=128),
            GroupPlan(
                "tail", "uncompressed_tail", (1,), (PartPlan("overlap", 4, (1,), "uint8", "kv", "carry"),), ratio=4
            ),
            GroupPlan(
                "window", "swa_window", (0, 1), (PartPlan("keys", 127, (1,), "uint8", "key_and_value", "window"),)
            ),
            GroupPlan(
                "indexer", "indexer_state", (1,), (PartPlan("keys", 64, (1,), "uint8", "index_key"),), ratio=4
            ),
        ),
    ).profile()


def full_and_window() -> Profile:
    """Full attention and a window of 128, both in blocks of 16 tokens: the layout of most engines."""
    return ProfilePlan(
        name="bench_full_and_window",
        title="Full attention and a sliding window in blocks of 16",
        source="common block size of serving engines",
        granule=16,
        identity="weights=none;positions=none;dtype=uint8;scores=none",
        window=128,
        window_policy="blocks",
        window_block=16,
        absent=("uncompressed_tail", "indexer_state"),
        groups=(
            GroupPlan("full", "compressed_kv", (0,), (PartPlan("keys", 16, (1,), "uint8", "key"),)),
            GroupPlan(
                "window", "swa_window", (1,), (PartPlan("keys", 16, (1,), "uint8", "key", "window"),), span=16
            ),
        ),
    ).profile()
