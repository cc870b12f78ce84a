"""Problem codes E5xx: model profiles."""

from __future__ import annotations

from collections.abc import Mapping

from .problems import CodeInfo

PROFILE_CODES: Mapping[str, CodeInfo] = {
    "E501": CodeInfo(
        "a span that does not fit the granule",
        "A prefix is reused in granules; each is a whole number of blocks of every group and of the "
        "window, so the granule is a multiple of the LCM of all spans.",
        "granule: 100    # wrong for spans 4 and 32\ngranule: 96     # right",
    ),
    "E502": CodeInfo(
        "layers that the model does not have",
        "Layers count from 0 to layer_count - 1, and a range holds at least one.",
        "layer_count: 4\nlayers: [3, 4]    # wrong",
    ),
    "E503": CodeInfo(
        "a layer that is named twice",
        "A layer keeps an object of one kind in one group only.",
        "layers: [2, 2]    # wrong",
    ),
    "E504": CodeInfo(
        "an unknown dtype",
        "Row bytes follow from the shape and the dtype, so both must be known.",
        "dtype: fp16       # wrong\ndtype: float16    # right",
    ),
    "E505": CodeInfo(
        "row bytes that do not follow",
        "Stated bytes of a row must equal what its shape and dtype take.",
        "shape: [64]\ndtype: float32\nrow_bytes: 128    # wrong: 256",
    ),
    "E506": CodeInfo(
        "an alignment or padding that does not follow",
        "Alignments are powers of two, and page bytes are the rows' bytes, padded.",
        "alignment: 48    # wrong\nalignment: 64    # right",
    ),
    "E507": CodeInfo(
        "a window and its policy",
        "Window rows, a policy and a window belong together, and drafts with rows that they would overwrite.",
        "window_policy: checkpoint    # wrong without window:",
    ),
    "E508": CodeInfo(
        "blocks of a window",
        "Policy 'blocks' says how long a block is; policy 'checkpoint' has none.",
        "window_policy: blocks    # wrong without window_block:",
    ),
    "E509": CodeInfo(
        "an object that no machine describes",
        "A group keeps an object of one of the machines.",
        "object: compressed    # wrong\nobject: compressed_kv    # right",
    ),
    "E510": CodeInfo(
        "rows that do not fill pages",
        "A span is a whole number of pages, and a page a whole number of rows.",
        "span: 6    # wrong at ratio 4",
    ),
    "E511": CodeInfo(
        "scores that mean two things",
        "Score rows hold the bias folded in or raw; parts that outlive a chunk and the identity must say the same.",
        "identity: {scores: raw, ...}\nmeaning: gate_bias_folded    # wrong",
    ),
    "E512": CodeInfo(
        "a file that is named otherwise",
        "A profile stands in a file of its own name.",
        "model: tiny    # wrong in llama.yaml",
    ),
    "E513": CodeInfo(
        "not one word",
        "Parts of the identity and meanings enter digests and names of folders, so each is one plain word.",
        "weights: my model    # wrong\nweights: my-model    # right",
    ),
    "E514": CodeInfo(
        "rows that are never there",
        "At ratio 1 each token is its own entry, so that none is ever pending.",
        "ratio: 1\nparts: {rest: {rows: pending, ...}}    # wrong",
    ),
}
