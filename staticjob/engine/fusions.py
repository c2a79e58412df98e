"""Which Hugging Face modules are run by a faster equivalent, by class name.

A class that is not in the table, or a module with a feature its equivalent lacks, runs unchanged.
Each entry is held to the eager result by a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from staticjob.engine.post_norm_layer import PostNormLayer, PostNormParts
from staticjob.engine.pre_norm_layer import PreNormLayer


def _bert(layer: Any) -> nn.Module | None:
    attention = layer.attention.self
    if layer.is_decoder or layer.add_cross_attention:
        return None
    return PostNormLayer(
        PostNormParts(
            query=attention.query,
            key=attention.key,
            value=attention.value,
            attention_output=layer.attention.output.dense,
            attention_norm=layer.attention.output.LayerNorm,
            up=layer.intermediate.dense,
            activation=layer.intermediate.intermediate_act_fn,
            down=layer.output.dense,
            output_norm=layer.output.LayerNorm,
            head_dim=attention.attention_head_size,
            scaling=attention.scaling,
        )
    )


def _distilbert(block: Any) -> nn.Module | None:
    attention = block.attention
    return PostNormLayer(
        PostNormParts(
            query=attention.q_lin,
            key=attention.k_lin,
            value=attention.v_lin,
            attention_output=attention.out_lin,
            attention_norm=block.sa_layer_norm,
            up=block.ffn.lin1,
            activation=block.ffn.activation,
            down=block.ffn.lin2,
            output_norm=block.output_layer_norm,
            head_dim=attention.attention_head_size,
            scaling=attention.scaling,
        )
    )


def _llama(layer: Any) -> nn.Module | None:
    attention, mlp = layer.self_attn, layer.mlp
    if not attention.is_causal or attention.o_proj.bias is not None or mlp.down_proj.bias is not None:
        return None
    return PreNormLayer(layer)


FUSIONS: dict[str, Callable[[Any], nn.Module | None]] = {
    "transformers.models.bert.modeling_bert.BertLayer": _bert,
    "transformers.models.camembert.modeling_camembert.CamembertLayer": _bert,
    "transformers.models.distilbert.modeling_distilbert.TransformerBlock": _distilbert,
    "transformers.models.electra.modeling_electra.ElectraLayer": _bert,
    "transformers.models.llama.modeling_llama.LlamaDecoderLayer": _llama,
    "transformers.models.mistral.modeling_mistral.MistralDecoderLayer": _llama,
    "transformers.models.qwen2.modeling_qwen2.Qwen2DecoderLayer": _llama,
    "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer": _llama,
    "transformers.models.roberta.modeling_roberta.RobertaLayer": _bert,
    "transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaLayer": _bert,
}


def fuse(model: nn.Module) -> int:
    """Replace what the table knows, in place; returns how many modules were replaced.

    A module that is replaced is let go at once: its weights may be laid out anew, and a large model's are
    never held twice.
    """
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _class_name(child) in FUSIONS
    ]
    count = 0
    for parent, name in places:
        fused = FUSIONS[_class_name(getattr(parent, name))](getattr(parent, name))
        if fused is not None:
            setattr(parent, name, fused.eval())
            count += 1
    return count


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
