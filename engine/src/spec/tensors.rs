//! Every tensor that a spec uses, with its shape: the one walk from which names, checks and sizes come.

use std::{collections::HashSet, ops::Range};

use super::{ExpertLinearSpec, ExpertsFfn, Ffn, GatedFfn, LayerSpec, LinearSpec, Mixer, ModelSpec, NormSpec};

/// A tensor that a model uses.
pub(crate) struct TensorUse<'s> {
    pub(crate) name: &'s str,
    /// Columns, then rows, then matrices; 1 where a tensor has fewer dimensions.
    pub(crate) dims: [usize; 3],
}

impl ModelSpec {
    /// Every tensor that the model uses; fused tensors and a tied head appear once.
    pub fn tensor_names(&self) -> Vec<&str> {
        self.stage_tensor_names(0..self.layers.len())
    }

    /// The same for the stage that has these layers: the embedding is the first one's, the head and its norm are the last
    /// one's.
    pub(crate) fn stage_tensor_names(&self, layers: Range<usize>) -> Vec<&str> {
        let mut known = HashSet::new();
        let names = self.stage_tensors(layers).into_iter().map(|tensor| tensor.name);
        names.filter(|name| known.insert(*name)).collect()
    }

    /// Every use of a tensor.
    pub(crate) fn tensors(&self) -> Vec<TensorUse<'_>> {
        self.stage_tensors(0..self.layers.len())
    }

    fn stage_tensors(&self, layers: Range<usize>) -> Vec<TensorUse<'_>> {
        let mut walk = Walk(Vec::new());
        if layers.start == 0 {
            walk.add(&self.embedding, [self.width, self.vocab_size, 1]);
        }
        if layers.end == self.layers.len() {
            walk.norm(&self.output_norm);
            walk.linear(&self.head);
        }
        self.layers[layers].iter().for_each(|layer| walk.layer(layer));
        walk.0
    }
}

struct Walk<'s>(Vec<TensorUse<'s>>);

impl<'s> Walk<'s> {
    fn add(&mut self, name: &'s str, dims: [usize; 3]) {
        self.0.push(TensorUse { name, dims });
    }

    fn vector(&mut self, name: Option<&'s String>, len: usize) {
        if let Some(name) = name {
            self.add(name, [len, 1, 1]);
        }
    }

    fn layer(&mut self, layer: &'s LayerSpec) {
        let norms = [&layer.mixer_norm, &layer.mixer_post_norm, &layer.ffn_norm, &layer.ffn_post_norm];
        norms.into_iter().flatten().for_each(|norm| self.norm(norm));
        let Mixer::Attention(a) = &layer.mixer;
        [&a.query_norm, &a.key_norm].into_iter().flatten().for_each(|norm| self.norm(norm));
        [&a.query, &a.key, &a.value, &a.output].into_iter().for_each(|linear| self.linear(linear));
        self.vector(a.sinks.as_ref(), a.heads);
        match &layer.ffn {
            Ffn::Gated(ffn) => self.gated(ffn),
            Ffn::Experts(ffn) => self.experts(ffn),
        }
    }

    fn gated(&mut self, ffn: &'s GatedFfn) {
        [&ffn.gate, &ffn.up, &ffn.down].into_iter().for_each(|linear| self.linear(linear));
    }

    fn experts(&mut self, ffn: &'s ExpertsFfn) {
        self.linear(&ffn.router);
        self.vector(ffn.choice_bias.as_ref(), ffn.routing.experts);
        [&ffn.gate, &ffn.up, &ffn.down].into_iter().for_each(|linear| self.expert_linear(linear));
        if let Some(shared) = &ffn.shared {
            self.gated(&shared.ffn);
            shared.gate.iter().for_each(|gate| self.linear(gate));
        }
    }

    fn linear(&mut self, linear: &'s LinearSpec) {
        self.add(&linear.weight, [linear.inputs, linear.tensor_rows, 1]);
        self.vector(linear.scale.as_ref(), 1);
        self.vector(linear.bias.as_ref(), linear.tensor_rows);
    }

    fn expert_linear(&mut self, linear: &'s ExpertLinearSpec) {
        let ExpertLinearSpec { each, experts } = linear;
        self.add(&each.weight, [each.inputs, each.tensor_rows, *experts]);
        self.vector(each.scale.as_ref(), *experts);
        if let Some(bias) = &each.bias {
            self.add(bias, [each.tensor_rows, *experts, 1]);
        }
    }

    fn norm(&mut self, norm: &'s NormSpec) {
        self.add(&norm.weight, [norm.len, 1, 1]);
    }
}
