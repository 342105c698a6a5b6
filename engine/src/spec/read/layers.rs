//! The parts of a layer under their usual names.

use zllm_kernels::backend::{Activation, MAX_EXPERTS, Rope, RopeStyle, Routing, RoutingScores};

use super::{
    super::{
        AttentionSpec, ExpertLinearSpec, ExpertsFfn, Ffn, GatedFfn, LayerSpec, LinearSpec, Mixer, ModelSpec,
        QueryGrowth, SharedExpert, SpecError,
    },
    Dimensions, MAX_CONTEXT, MAX_DIMENSION, PerLayer, Reader, Value, WINDOW,
};

impl Reader<'_> {
    /// Layers that norm before each part and add what it gives: what most families are.
    pub(in super::super) fn pre_norm_layer(
        &self,
        index: usize,
        d: &Dimensions,
        attention: AttentionSpec,
        ffn: Ffn,
    ) -> LayerSpec {
        let norm = |part: &str| Some(self.norm(&format!("blk.{index}.{part}"), d.width, d.epsilon));
        LayerSpec {
            mixer_norm: norm("attn_norm"),
            mixer: Mixer::Attention(attention),
            mixer_post_norm: None,
            ffn_norm: norm("ffn_norm"),
            ffn,
            ffn_post_norm: None,
            residual_scale: 1.0,
        }
    }

    /// Layers that norm before each part and again what it gives.
    pub(in super::super) fn sandwich_layer(
        &self,
        index: usize,
        d: &Dimensions,
        attention: AttentionSpec,
        ffn: Ffn,
    ) -> LayerSpec {
        let norm = |part: &str| Some(self.norm(&format!("blk.{index}.{part}"), d.width, d.epsilon));
        LayerSpec {
            mixer_post_norm: norm("post_attention_norm"),
            ffn_post_norm: norm("post_ffw_norm"),
            ..self.pre_norm_layer(index, d, attention, ffn)
        }
    }

    /// How queries grow with their position, from the first context that the model was made for on.
    pub(in super::super) fn query_growth(&self) -> Result<Option<QueryGrowth>, SpecError> {
        let Some(strength) = self.positive_or_0("attention.temperature_scale")? else { return Ok(None) };
        Ok(Some(QueryGrowth { step: self.first_context()?, strength }))
    }

    /// Pre-norm layers that all see everything; experts with normalised weights where the file has them, else a network
    /// with a SiLU gate.
    pub(in super::super) fn plain_decoder(&self, style: RopeStyle) -> Result<ModelSpec, SpecError> {
        let d = self.dimensions()?;
        let rope = self.rope(style, &d)?;
        self.layers_and_ends(&d, |i| {
            let ffn = self.gated_or_experts(i, &d)?;
            Ok(self.pre_norm_layer(i, &d, self.attention(i, &d, Some(rope.clone())), ffn))
        })
    }

    /// Experts with normalised weights where the file has them, else a network; with SiLU.
    pub(in super::super) fn gated_or_experts(&self, index: usize, d: &Dimensions) -> Result<Ffn, SpecError> {
        if self.number_or_0("expert_count", MAX_EXPERTS)? == 0 {
            return Ok(Ffn::Gated(self.gated_ffn(index, d, Activation::Silu)));
        }
        let routing = self.routing(RoutingScores::Softmax, true)?;
        Ok(Ffn::Experts(self.experts(index, d, routing, d.hidden, Activation::Silu)))
    }

    /// A model of the layers that `layer` gives.
    pub(in super::super) fn layers_and_ends(
        &self,
        d: &Dimensions,
        layer: impl FnMut(usize) -> Result<LayerSpec, SpecError>,
    ) -> Result<ModelSpec, SpecError> {
        self.model(d, (0..d.layers).map(layer).collect::<Result<_, _>>()?)
    }

    /// The q, k, v and output products of layer `index`; norms of heads where the file has them. Scores are multiplied
    /// by `d.attention_scale`; the layer sees everything.
    pub(in super::super) fn attention(
        &self,
        index: usize,
        d: &Dimensions,
        rope: Option<Rope>,
    ) -> AttentionSpec {
        let name = |part: &str| format!("blk.{index}.{part}");
        let head_norm = |part: &str| {
            let norm = self.norm(&name(part), d.key_dim, d.epsilon);
            self.has_tensor(&norm.weight).then_some(norm)
        };
        let outputs = [d.heads * d.key_dim, d.kv_heads * d.key_dim, d.kv_heads * d.value_dim];
        let [query, key, value] = if self.has_tensor(&name("attn_qkv.weight")) {
            self.fused(&name("attn_qkv"), d.width, outputs)
        } else {
            let parts = ["attn_q", "attn_k", "attn_v"];
            std::array::from_fn(|i| self.linear(&name(parts[i]), d.width, outputs[i]))
        };
        AttentionSpec {
            heads: d.heads,
            kv_heads: d.kv_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            scale: d.attention_scale,
            window: None,
            soft_cap: None,
            sinks: None,
            rope,
            query_growth: None,
            query_norm: head_norm("attn_q_norm"),
            key_norm: head_norm("attn_k_norm"),
            query,
            key,
            value,
            output: self.linear(&name("attn_output"), d.heads * d.value_dim, d.width),
        }
    }

    /// `attention` with a norm over the whole row of queries and one over that of keys.
    pub(in super::super) fn with_row_norms(
        &self,
        index: usize,
        d: &Dimensions,
        attention: AttentionSpec,
    ) -> AttentionSpec {
        let norm = |part: &str, len| Some(self.norm(&format!("blk.{index}.{part}"), len, d.epsilon));
        AttentionSpec {
            query_norm: norm("attn_q_norm", attention.query.outputs),
            key_norm: norm("attn_k_norm", attention.key.outputs),
            ..attention
        }
    }

    /// The network of layer `index`.
    pub(in super::super) fn gated_ffn(
        &self,
        index: usize,
        d: &Dimensions,
        activation: Activation,
    ) -> GatedFfn {
        let name = |part: &str| format!("blk.{index}.{part}");
        GatedFfn {
            activation,
            gate: self.linear(&name("ffn_gate"), d.width, d.hidden),
            up: self.linear(&name("ffn_up"), d.width, d.hidden),
            down: self.linear(&name("ffn_down"), d.hidden, d.width),
        }
    }

    /// The same where the rows of `ffn_up` are the gate's, then those of what is gated.
    pub(in super::super) fn fused_gated_ffn(
        &self,
        index: usize,
        d: &Dimensions,
        activation: Activation,
    ) -> GatedFfn {
        let [gate, up] = self.fused(&format!("blk.{index}.ffn_up"), d.width, [d.hidden; 2]);
        GatedFfn { gate, up, ..self.gated_ffn(index, d, activation) }
    }

    /// How rows choose experts: what the family does, which the file may say again but not otherwise, and what all files
    /// say. Weights are not scaled.
    pub(in super::super) fn routing(
        &self,
        scores: RoutingScores,
        normalise: bool,
    ) -> Result<Routing, SpecError> {
        const FUNCTION: &str = "expert_gating_func";
        const NORMALISE: &str = "expert_weights_norm";
        let function = match scores {
            RoutingScores::Softmax => 1,
            RoutingScores::Sigmoid => 2,
            RoutingScores::SoftmaxOfChosen => 3,
        };
        let found = self.number_or_0(FUNCTION, usize::MAX)?;
        if found != 0 && found != function {
            return Err(self.bad(FUNCTION, found, format!("models of this family have {function}")));
        }
        if self.flag(NORMALISE, normalise)? != normalise {
            return Err(self.bad(NORMALISE, !normalise, format!("models of this family have {normalise}")));
        }
        let experts = self.count("expert_count", MAX_EXPERTS)?;
        let used = self.count("expert_used_count", experts)?;
        let groups = self.number_or_0("expert_group_count", experts)?.max(1);
        let groups_used = match groups {
            1 => 1,
            _ => self.count("expert_group_used_count", groups)?,
        };
        if !experts.is_multiple_of(groups) || groups > 1 && experts / groups < 2 {
            let expected = format!("it must cut the {experts} experts into equal groups of at least 2");
            return Err(self.bad("expert_group_count", groups, expected));
        }
        if used > experts / groups * groups_used {
            let expected = format!("{groups_used} groups of {} have fewer", experts / groups);
            return Err(self.bad("expert_used_count", used, expected));
        }
        Ok(Routing { experts, used, scores, groups, groups_used, normalise, scale: 1.0 })
    }

    /// Columns of an expert's gate: the file's number, or the share of one expert in the whole.
    pub(in super::super) fn expert_width(&self, d: &Dimensions) -> Result<usize, SpecError> {
        match self.number_or_0("expert_feed_forward_length", MAX_DIMENSION)? {
            0 => Ok(d.hidden / self.count("expert_used_count", MAX_EXPERTS)?),
            width => Ok(width),
        }
    }

    /// Columns of the gate of the expert that every position uses; `None` where the file gives none.
    pub(in super::super) fn shared_expert_width(&self) -> Result<Option<usize>, SpecError> {
        let width = self.number_or_0("expert_shared_feed_forward_length", MAX_DIMENSION)?;
        Ok(Some(width).filter(|width| *width > 0))
    }

    /// The experts of layer `index`, their gates `hidden` wide, with none that every position uses.
    pub(in super::super) fn experts(
        &self,
        index: usize,
        d: &Dimensions,
        routing: Routing,
        hidden: usize,
        activation: Activation,
    ) -> ExpertsFfn {
        let name = |part: &str| format!("blk.{index}.{part}");
        let experts = routing.experts;
        let each = |each: LinearSpec| ExpertLinearSpec { each, experts };
        let [gate, up] = if self.has_tensor(&name("ffn_gate_up_exps.weight")) {
            self.fused(&name("ffn_gate_up_exps"), d.width, [hidden; 2])
        } else {
            ["ffn_gate_exps", "ffn_up_exps"].map(|part| self.linear(&name(part), d.width, hidden))
        };
        let choice_bias = name("exp_probs_b.bias");
        ExpertsFfn {
            router: self.linear(&name("ffn_gate_inp"), d.width, experts),
            routing,
            choice_bias: self.has_tensor(&choice_bias).then_some(choice_bias),
            activation,
            gate: each(gate),
            up: each(up),
            down: each(self.linear(&name("ffn_down_exps"), hidden, d.width)),
            shared: None,
        }
    }

    /// The expert of layer `index` that every position uses, `hidden` wide.
    pub(in super::super) fn shared_expert(
        &self,
        index: usize,
        d: &Dimensions,
        hidden: usize,
        activation: Activation,
    ) -> SharedExpert {
        let name = |part: &str| format!("blk.{index}.{part}_shexp");
        let ffn = GatedFfn {
            activation,
            gate: self.linear(&name("ffn_gate"), d.width, hidden),
            up: self.linear(&name("ffn_up"), d.width, hidden),
            down: self.linear(&name("ffn_down"), hidden, d.width),
        };
        SharedExpert { ffn, gate: None }
    }

    /// Positions that a windowed layer sees; `None` where the file gives none or 0.
    pub(in super::super) fn window(&self) -> Result<Option<usize>, SpecError> {
        Ok(Some(self.number_or_0(WINDOW, MAX_CONTEXT)?).filter(|window| *window > 0))
    }

    /// The window of each layer, `window` or `None`: it sees everything. The file has a flag for each layer, or one number,
    /// the period, or neither, when it is `usual_period`. Each `period`-th layer sees everything; no layer does when it is
    /// 0.
    pub(in super::super) fn windows(
        &self,
        layers: usize,
        window: Option<usize>,
        usual_period: usize,
    ) -> Result<Vec<Option<usize>>, SpecError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        if let Some(Value::Bool(found)) = self.file.metadata().get(&self.key(PATTERN)) {
            return Err(self.bad(PATTERN, found, "it must be a period, or a flag for each layer"));
        }
        let period = match self.file.metadata().opt_per_layer(&self.key(PATTERN), layers)? {
            Some(PerLayer::Each(flags)) => {
                return Ok(flags.iter().map(|flag| window.filter(|_| *flag != 0)).collect());
            }
            Some(PerLayer::All(period)) => period as usize,
            None => usual_period,
        };
        let windowed = |layer| period == 0 || layer % period < period - 1;
        Ok((0..layers).map(|layer| window.filter(|_| windowed(layer))).collect())
    }
}
