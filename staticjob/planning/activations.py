"""Values that live between a batch's tokens and its results, per slot, from the model's sizes alone.

Counted from the modules' code and held to torch's memory profiler by tests/test_memory.py.
"""

from __future__ import annotations

from staticjob.models.dimensions import Dimensions


def layer_buffers(sizes: Dimensions) -> int:
    """Of a fused layer, kept from batch to batch.

    `PostNormLayer`: query, key and value; a residual; the intermediate. `PreNormLayer`: the normed; query and
    key turned.
    """
    query, key_value = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    if sizes.post_norm:
        return query + 2 * key_value + sizes.hidden + sizes.intermediate
    return sizes.hidden + query + key_value


def fused_values(sizes: Dimensions) -> int:
    """Live at once beside the buffers of fused layers.

    Post-norm: the embeddings of words, positions and token types, and two sums of them. Pre-norm: the
    residual, and with it gate and up; or gate times up and what the feed-forward gives; or value head by head
    and what attention gave; or two steps of the norm behind the last layer.
    """
    if sizes.post_norm:
        return 5 * sizes.hidden
    query, key_value = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    feed_forward = sizes.intermediate + max(sizes.intermediate, sizes.hidden)
    return sizes.hidden + max(feed_forward, key_value + query, 2 * sizes.hidden)


def module_values(sizes: Dimensions) -> int:
    """Live at once in Hugging Face's own modules: at the feed-forward's widest.

    Llama-like: two residuals, the normed, what attention left; the gate's activation, up, their product.
    BERT-like: up and its activation. ModernBERT: gate and up in one, the activation, the product. GPT-2: up
    and three steps of its written-out activation.
    """
    if sizes.gated and sizes.model_type != "modernbert":
        return 4 * sizes.hidden + 3 * sizes.intermediate
    return 5 * sizes.hidden + (2 if sizes.post_norm else 4) * sizes.intermediate


def by_hand_values(sizes: Dimensions) -> int:
    """Live at once where `LlamaLike.prefill` multiplies gate and up.

    Two residuals; the context as attention gave it and in one piece; query, key and value as computed and
    turned; gate and up, the activation and the product.
    """
    query, key_value = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return 2 * sizes.hidden + 4 * query + 3 * key_value + 4 * sizes.intermediate
